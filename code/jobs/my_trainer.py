"""Train a GPT with the pieces that you write in mytrainer/. From the workspace:

    python code/my_trainer.py FLAGS                            one process
    torchrun --nproc_per_node 2 code/my_trainer.py FLAGS       two ranks, with your ddp.py
    sbatch code/my_trainer.sh FLAGS                            two nodes with two ranks each
    virtualrun --gpus h100:8 --solo code/my_trainer.py FLAGS   eight virtual H100s

The model, the data, and the flags are those of pretrain_gpt.py, so the same flags give the same
losses. Your files do the rest:

    launch.py         joins the ranks, and divides the samples among them
    train.py          is the training loop; --fp16 needs the version of lab 05
    ddp.py            averages gradients: after the backward pass, or with --overlap-grad-reduce
                      during it
    collectives.py    all-reduces them in a ring, with --ring-all-reduce
    precision.py      keeps fp32 master weights, with --bf16 or --fp16
    scaler.py         scales the loss, with --fp16; unscale.py finds overflows
    histogram.py      counts the zeros of the gradient, with --log-num-zeros-in-grad
    autocast.py       chooses the dtype of each operation, with --autocast
    rounding.py       updates bf16 parameters without master weights, with --stochastic-rounding
    checkpointing.py  recomputes activations, with --recompute-granularity
    placement.py      chooses which layers to recompute, with --activation-memory-mb, from what
                      saved.py measures
    attention.py      computes attention, with --tiled-attention
    offload.py        moves saved activations to host memory, with --offload-activations
    zero.py           shards the optimizer state over the ranks, and zero2.py and zero3.py the
                      gradients and parameters, with --use-megatron-fsdp and
                      --data-parallel-sharding-strategy; shards.py computes who owns what,
                      clipping.py clips, and prefetch.py gathers parameters early, with
                      --overlap-param-gather
    tensor_parallel.py   shares each layer among ranks, with --tensor-model-parallel-size: the whole
                      model is then yours, llama.py, of heads.py and vocabulary.py; finish_gradients
                      of heads.py and grad_norm.py complete its gradients. --own-model trains it
                      on one rank, and --own-init lets randomness.py initialize it.
    sequence_parallel.py   splits the sequence outside of them, with --sequence-parallel
    tp_overlap.py     overlaps their all-reduces, with --async-tensor-model-parallel-allreduce
    pipeline.py       runs the stages of a pipeline, with --pipeline-model-parallel-size: the
                      LlamaStage of llama_stage.py, in stage.py, with the weights of
                      micro_batches.py and the sends and receives of program.py, which p2p.py makes
                      asynchronous; tied.py keeps the two ends of a model equal, and grid.py creates
                      the process groups
    gpipe.py          orders the passes, with --schedule gpipe; one_f_one_b.py, interleaved.py,
                      zero_bubble.py, and zero_bubble_2.py are --schedule 1f1b, interleaved, zb-h1,
                      and zb-h2, of which the last two need split_backward.py
    layer_memory.py   predicts what your layers save, which the log compares with the count of
                      saved.py
    reshard.py        lets --load resume on any number of ranks and with any strategy
    fp8.py            computes the linear layers, with --fp8-format hybrid; --fp8-recipe chooses
                      where their scales come from: delayed.py and amaxes.py, blocks.py, or mx.py

Until you have written launch.py, train.py, and precision.py, the course's versions take their
place. Without ddp.py and without sharding, training is limited to one rank. With
--samples-per-rank, ranks process different numbers of samples, and the loop is always the course's.
There is no validation.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import defaults, flags, pieces
from lab.mytrainer.checkpoints import Checkpoints, Progress
from lab.mytrainer.flags import LoopConfig
from lab.mytrainer.model import GPT
from lab.mytrainer.own_checkpoints import OwnCheckpoints
from lab.mytrainer.own_model import OwnLlama, connect_grid, default_group, finish_first, group_of
from lab.mytrainer.own_pipeline import OwnPipeline
from minimegatron.arguments import Config
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.tokenizer import vocabulary_of
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError
from minimegatron.grid import Grid
from minimegatron.initialize import cap_threads, choose_device
from minimegatron.optim import LearningRate
from minimegatron.report.log_lines import iteration_line, print_world_size
from minimegatron.report.status import Status
from minimegatron.report.tensorboard import TensorBoard


def connect(config: LoopConfig) -> Context:
    """Join the other ranks. Each rank has its own device, and is a data-parallel replica alone or
    together with its tensor-parallel neighbors.

    Raises UserError if `connect` of your launch.py returns another device.
    """
    device, notes = choose_device(config, int(os.environ.get("LOCAL_RANK", 0)))
    launch = pieces.load("launch")
    if launch is None:
        defaults.join_ranks(config)
    else:
        if "RANK" not in os.environ:  # started without torchrun
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        chosen = launch.connect()
        if chosen != device.torch_device or not dist.is_initialized():
            joined = "" if dist.is_initialized() else ", and no process group has been initialized"
            raise UserError(f"mytrainer/launch.py: connect() returns {chosen!r}{joined}; --device "
                            f"{config.device} asks for {device.torch_device!r} on rank "
                            f"{os.environ['RANK']}")
    ctx = Context(config, connect_grid(config), device)
    for note in notes:
        ctx.print_rank_0(note)
    if device.torch_device.type == "cpu":
        cap_threads(ctx)  # ranks on one machine share its cores
    return ctx


def data_parallel(config: LoopConfig) -> type[nn.Module]:
    """Return the class that the flags choose among your DataParallel and your classes of lab 08.

    Without ddp.py, one rank has the course's OneProcess. Raises UserError if a file is missing.
    """
    if config.zero_stage:
        flags.require_sharding(config)
        if config.overlap_param_gather and (prefetch := pieces.load("prefetch")) is not None:
            return prefetch.Prefetching
        name = flags.ZERO[config.zero_stage - 1]
        return getattr(pieces.load(name), pieces.PIECES[name].defines[0])
    ddp = pieces.load("ddp")
    if ddp is None and config.data_parallel_size > 1:
        raise UserError(f"{config.world_size} ranks need mytrainer/ddp.py, which you write in "
                        "lab 04; until then, start one: python code/my_trainer.py")
    return defaults.OneProcess if ddp is None else ddp.DataParallel


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) in mixed precision, which ends the step of FP8 layers.

    Attributes:
        masters: the fp32 master weights, one for each parameter; none with --stochastic-rounding.
        adam: AdamW over them; then, the last of those that your rounding.py has made.
    """

    def __init__(self, ctx: Context, gpt: GPT | OwnLlama, parameters: Iterable[nn.Parameter]
                 ) -> None:
        """Args:
            ctx: this rank.
            gpt: the module, whose biases and layer norms do not decay.
            parameters: what this rank updates: for each parameter of gpt, in the same order, the
                parameter, or its elements that this rank owns, [n].
        """
        self.gpt, self.ranks, config = gpt, ctx.grid.dp, ctx.config
        precision = None if config.precision == "fp32" else pieces.load("precision")
        make = (defaults if precision is None else precision).MixedPrecision
        self.masters: list[torch.Tensor] = []

        def make_adam(masters: Iterable[torch.Tensor]) -> torch.optim.AdamW:
            self.masters = list(masters)
            decays = [parameter.dim() > 1 for parameter in gpt.parameters()]
            self.adam = adamw(config, self.masters, decays)
            return self.adam

        def make_one(copies: Sequence[torch.Tensor]) -> torch.optim.AdamW:
            self.adam = adamw(config, copies, [copy.dim() > 1 for copy in copies])
            return self.adam

        if config.stochastic_rounding:
            self.mixed = pieces.load("rounding").StochasticRounding(list(parameters), make_one)
        else:
            self.mixed = make(list(parameters), make_adam)

    @property
    def param_groups(self) -> list[dict]:
        return self.mixed.param_groups

    def zero_grad(self) -> None:
        self.mixed.zero_grad()

    def step(self) -> None:
        """Update the parameters, and the scales of FP8 layers."""
        self.mixed.step()
        self.gpt.end_step(self.ranks)


def adamw(config: LoopConfig, masters: Sequence[torch.Tensor], decays: Sequence[bool]
          ) -> torch.optim.AdamW:
    """Return AdamW over the master weights, given which of them decay."""
    yes, no = ([master for master, decay in zip(masters, decays, strict=True) if decay is wanted]
               for wanted in (True, False))
    return torch.optim.AdamW(
        [{"params": yes}, {"params": no, "weight_decay": 0.0}], lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps,
        weight_decay=config.weight_decay, fused=True)


def loss_scaler(config: LoopConfig) -> object | None:
    """Return your LossScaler as the flags describe it, or None without --fp16.

    pretrain_gpt.py divides each rank's loss by the number of ranks before the backward pass, and
    your DataParallel divides the gradients after it. Dividing your scale by the number of replicas
    gives both programs the same 16-bit gradients, and so the same overflows.
    """
    if not config.fp16:
        return None
    make, replicas = pieces.load("scaler").LossScaler, config.data_parallel_size
    if config.loss_scale is not None:  # a scale that is its own minimum, and never grows
        return make(config.loss_scale / replicas, config.loss_scale / replicas, math.inf, 1)
    return make(config.initial_loss_scale / replicas, config.min_loss_scale / replicas,
                config.loss_scale_window, config.hysteresis)


class StepLog:
    """Logs the mean of every --log-interval steps as pretrain_gpt.py does, and for TensorBoard."""

    def __init__(self, ctx: Context, learning_rate: Callable[[int], float], model: nn.Module,
                 scaler: object | None, progress: Progress) -> None:
        """Args:
            ctx: this rank.
            learning_rate: as a function of the samples that advanced it.
            model: the wrapped GPT, whose gradients this rank has.
            scaler: your LossScaler, if any.
            progress: how far the run is, which each step changes.
        """
        self.ctx, self.learning_rate, self.model, self.scaler = ctx, learning_rate, model, scaler
        self.progress = progress
        self.board, self.status = TensorBoard(ctx), Status(ctx)
        self.losses, self.steps, self.started = [], 0, ctx.device.now()  # since the last line
        self.skipped = 0  # steps since the last line

    def __call__(self, iteration: int, loss: torch.Tensor, norm: torch.Tensor,
                 skipped: bool = False) -> None:
        """Record the result of a step; called on every rank.

        Args:
            iteration: number of the step, of all runs.
            loss: mean loss over the global batch, one element.
            norm: gradient norm before clipping, one element.
            skipped: whether a gradient overflowed, so that the step updated nothing.
        """
        config, ctx = self.ctx.config, self.ctx
        self.steps += 1
        self.skipped += bool(skipped)
        self.progress.iteration = iteration
        if skipped:
            self.progress.skipped.append(iteration)
        else:
            self.losses.append(torch.as_tensor(loss).detach())
        if iteration % config.log_interval:
            return
        seconds = (ctx.device.now() - self.started) / self.steps
        consumed, batch = iteration * config.global_batch_size, config.global_batch_size
        advanced = batch * self.progress.updates
        shown = {"loss": ctx.read(torch.stack(self.losses).mean()) if self.losses else None,
                 "norm": None if skipped else ctx.read(torch.as_tensor(norm))}
        nans = 0 if shown["loss"] is None else int(math.isnan(shown["loss"]))
        scale = 1.0 if self.scaler is None else float(self.scaler.scale) * config.data_parallel_size
        ctx.print_rank_0(iteration_line(
            config, iteration=iteration, consumed=consumed, milliseconds=1000 * seconds,
            lr=self.learning_rate(advanced), zeros=None if skipped else self._zeros(),
            params_norm=None, nans=nans, loss_scale=scale, skipped=self.skipped, **shown))
        self.board.scalar("lm loss", shown["loss"], iteration, consumed)
        self.board.scalar("grad-norm", shown["norm"], iteration, consumed)
        if self.scaler is not None:
            self.board.scalar("loss-scale", scale, iteration, consumed)
        self.status.step(iteration, seconds, shown)  # for `lab top`
        self.losses, self.steps, self.skipped, self.started = [], 0, 0, ctx.device.now()

    def _zeros(self) -> float | None:
        """Return the number of zeros in the gradient, counted by your histogram.py.

        Without --log-num-zeros-in-grad, return None. On a virtual GPU, which has no values, your
        function runs all the same, because it takes time, and the result is None.
        """
        if not self.ctx.config.log_num_zeros_in_grad:
            return None
        count = pieces.load("histogram").log2_histogram
        zeros = torch.stack([count(parameter.grad)[0] for parameter in self.model.parameters()
                             if parameter.grad.numel()]).sum()  # a shard may have none of it
        if self.ctx.config.zero_stage:
            dist.all_reduce(zeros)
        return self.ctx.read(zeros)

    def close(self) -> None:
        self.board.close()
        self.status.update(state="done")


def rate_schedule(config: Config) -> Callable[[int], float]:
    """Return the learning rate as a function of the samples consumed so far."""
    def learning_rate(consumed: int) -> float:
        schedule.samples = consumed
        return schedule.value().item()

    schedule = LearningRate(config)
    return learning_rate


def batches_of(data: Batches, shares: Callable[[int, int, int, int], Sequence[int]]
               ) -> Callable[[int], list[MicroBatch]]:
    """Return a function that loads this rank's micro-batches of a step.

    With a pipeline, they are one: your executor takes all of them in one call.

    Args:
        data: the training data.
        shares: own_samples of your launch.py, or the course's.
    """
    config, replicas = data.ctx.config, data.ctx.grid.dp
    rank, ranks = replicas.index, replicas.size
    batch, size = config.global_batch_size, config.micro_batch_size

    def batches(consumed: int) -> list[MicroBatch]:
        """Return the micro-batches of the step that follows `consumed` samples."""
        if config.samples is not None:
            first = consumed + sum(config.samples[:rank])
            numbers = range(first, first + config.samples[rank])
        else:
            numbers = shares(consumed, batch, rank, ranks)
            if len(numbers) != batch // ranks:
                raise UserError(f"mytrainer/launch.py: own_samples({consumed}, {batch}, {rank}, "
                                f"{ranks}) returns {len(numbers)} numbers instead of "
                                f"{batch // ranks}")
        loaded = [data.micro_batch(numbers[start:start + size], consumed // batch, train=True)
                  for start in range(0, len(numbers), size)]
        return [loaded] if config.has_pipeline else loaded

    return batches


def build(ctx: Context, wrapper: Callable[..., nn.Module], vocab_size: int,
          world: dist.ProcessGroup
          ) -> tuple[GPT | OwnLlama, nn.Module, Optimizer]:
    """Return the model, its replica or shards on this rank, and the optimizer.

    Args:
        ctx: this rank.
        wrapper: your DataParallel; with a sharding strategy, your class of lab 08.
        vocab_size: the number of tokens.
        world: the process group of all ranks; the default one is that of the replicas.
    """
    config = ctx.config
    padded = pad_vocab_size(vocab_size, config.make_vocab_size_divisible_by,
                            config.tensor_model_parallel_size)
    if config.has_own_model:
        gpt = (OwnPipeline if config.has_pipeline else OwnLlama)(ctx, padded, world)
    else:
        gpt = GPT(ctx, padded)
    if config.ring_all_reduce:
        wrapper = partial(wrapper, all_reduce=pieces.load("collectives").all_reduce)
    parameters = sum(math.prod(getattr(weight, "full_shape", weight.shape))
                     for weight in gpt.parameters())
    model = wrapper(gpt, gpt.blocks) if config.zero_stage else wrapper(gpt)
    if config.zero_stage and config.has_own_model:
        finish_first(gpt, model)
    optimizer = Optimizer(ctx, gpt, model.parameters())
    stage = f" of stage 0 of {ctx.grid.pp.size}" if config.has_pipeline else ""
    ctx.print_rank_0(f"training {parameters:,} parameters{stage} on {ctx.grid.world_size} rank(s) "
                     f"with {pieces.describe()}")
    return gpt, model, optimizer


def resume(config: LoopConfig, checkpoints: Checkpoints | None, scaler: object | None) -> Progress:
    """Return how far the run is, after loading its checkpoint, if any.

    Your LossScaler then learns again which steps overflowed, so it has the scale that it had.
    """
    progress = Progress() if config.load is None else checkpoints.load()
    if scaler is not None:
        skipped = set(progress.skipped)
        for iteration in range(1, progress.iteration + 1):
            scaler.update(iteration in skipped)
    return progress


def run_loop(ctx: Context, gpt: GPT | OwnLlama, model: nn.Module, optimizer: Optimizer,
             data: Batches, checkpoints: Checkpoints | None) -> None:
    """Run your loop, or the course's, from the checkpoint of --load to the last step.

    The loop counts from step 1 and from no samples, so after a checkpoint, what it calls adds the
    steps and samples of the runs before.
    """
    config, launch = ctx.config, pieces.load("launch") or defaults
    # With unequal shares, the course's loop averages the losses by the number of samples.
    loop = (pieces.load("train") if config.samples is None else None) or defaults
    rate, scaler = rate_schedule(config), loss_scaler(config)
    progress = resume(config, checkpoints, scaler)
    first, advanced = progress.iteration, progress.updates * config.global_batch_size
    log, batches = StepLog(ctx, rate, model, scaler, progress), batches_of(data, launch.own_samples)

    def after_step(iteration: int, loss: torch.Tensor, norm: torch.Tensor,
                   skipped: bool = False) -> None:
        log(first + iteration, loss, norm, skipped)
        done = progress.iteration
        if config.save and (done % config.save_interval == 0 or done == config.train_iters):
            checkpoints.save(progress)

    if config.has_own_model:
        scaler = gpt.share(scaler)
    more = {} if scaler is None else {"scaler": scaler}
    if config.has_own_model:
        more["clip"] = gpt.clip
    elif config.zero_stage:
        more["clip"] = pieces.load("clipping").clip_grad_norm
    # Within no_sync, no backward pass communicates: finish() averages all gradients at the end.
    with nullcontext() if config.overlap_grad_reduce else model.no_sync():
        loop.train(model, optimizer,
                   lambda consumed: batches(consumed + first * config.global_batch_size),
                   lambda samples: rate(samples + advanced), after_step,
                   replace(config, train_iters=max(config.train_iters - first, 0)), **more)
    log.close()


def main(wrapper: type[nn.Module] | None = None) -> Grid:
    """Train with the flags of the command line, and return the process grid.

    Args:
        wrapper: the class that replicates or shards the model; None for data_parallel's choice.
    """
    config = flags.parse(sys.argv[1:])
    wrapper = wrapper or data_parallel(config)
    flags.require_pieces(config, wrapper)
    print_world_size(config, notes=[])
    tokenizer = vocabulary_of(config)
    ctx = connect(config)
    text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
    world = dist.group.WORLD
    with default_group(group_of(ctx.grid.dp)):
        gpt, model, optimizer = build(ctx, wrapper, tokenizer.vocab_size, world)
        checkpoints = None
        if config.save or config.load:
            make = OwnCheckpoints if config.has_own_model else Checkpoints
            checkpoints = make(ctx, gpt, model, optimizer.masters, optimizer.adam)
        run_loop(ctx, gpt, model, optimizer, Batches(ctx, text, tokenizer.eod, "training"),
                 checkpoints)
    dist.destroy_process_group()
    return ctx.grid


if __name__ == "__main__":
    pieces.run(main)

"""Train a GPT with the pieces that you write in mytrainer/. From the workspace:

    python code/my_trainer.py FLAGS                            one process
    torchrun --nproc_per_node 2 code/my_trainer.py FLAGS       two ranks, with your ddp.py
    sbatch code/my_trainer.sh FLAGS                            two nodes with two ranks each
    virtualrun --gpus h100:8 --solo code/my_trainer.py FLAGS   eight virtual H100s

The model, the data, and the flags are those of pretrain_gpt.py, so the same flags give the same
losses. Your files do the rest. launch.py joins the ranks and divides the samples among them, and
train.py is the training loop; until you have written them, `join_ranks`, `own_samples`, and `train`
below take their place. ddp.py averages gradients, with --overlap-grad-reduce during the backward
pass, and with --ring-all-reduce through the ring of collectives.py. With --bf16 and --fp16,
precision.py keeps the master weights; --fp16 also needs unscale.py, scaler.py, and the train.py of
lab 05, and --log-num-zeros-in-grad needs histogram.py. With --autocast, parameters stay in fp32,
and autocast.py chooses the dtype of each operation. With --bf16 --fp8-format hybrid, the linear
layers and the recipes that --fp8-recipe selects are yours, too. With --recompute-granularity or
--activation-memory-mb, checkpointing.py recomputes activations; with --tiled-attention,
attention.py computes attention; and with --offload-activations, offload.py moves what the layers
save to the host. With --samples-per-rank, ranks process different numbers of samples. There is no
validation and no checkpoint yet.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from lab.mytrainer import flags, pieces
from lab.mytrainer.flags import LoopConfig
from minimegatron.arguments import Config
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches, sample_numbers
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.vocabulary import Vocabulary, pad_vocab_size
from minimegatron.errors import UserError
from minimegatron.grid import GROUPS, Grid, Group
from minimegatron.initialize import cap_threads, choose_device, join
from minimegatron.model.gpt import Stage
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from minimegatron.optim import LearningRate
from minimegatron.report.log_lines import iteration_line, print_world_size
from minimegatron.report.status import Status
from minimegatron.report.tensorboard import TensorBoard

Layer = Callable[[torch.Tensor], torch.Tensor]  # maps hidden states [s, b, h] to the same shape


class SharedScale:
    """A tensor's DelayedScale, which is advanced once per step with the amax of all ranks.

    Attributes:
        amax: the largest magnitude of this step's tensors on this rank, fp32, one element.
    """

    def __init__(self, delayed: object, device: torch.device) -> None:
        self.delayed, self.amax = delayed, torch.zeros((), device=device)

    @property
    def scale(self) -> float:
        return self.delayed.scale

    def record(self, x: torch.Tensor) -> None:
        self.amax = torch.maximum(self.amax, x.abs().amax().float())

    def end_step(self, amax: torch.Tensor) -> None:
        """Set the next step's scale, given the amax over all ranks."""
        self.delayed.record(amax)
        self.delayed.end_autocast()
        self.amax = torch.zeros_like(self.amax)


class GPT(nn.Module):
    """The whole model on one GPU: a pipeline with a single stage.

    Attributes:
        scales: those of the linear layers' tensors with --fp8-recipe delayed; else empty.
        first_micro_batch: whether the next micro-batch is its step's first, so weights are new.
        autocast: the context of the forward pass: your Autocast with --autocast.
    """

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        """Create the model; with --fp8-format, your FP8 layer computes its linear layers."""
        super().__init__()
        plain = replace(ctx.config, fp8_format=None, recompute_granularity=None)
        if ctx.config.autocast:
            plain = replace(plain, bf16=False, fp16=False)  # fp32 parameters
        plain = replace(ctx, config=plain)
        self.stage = Stage(plain, vocab_size, range(ctx.config.num_layers))
        self.first_micro_batch, self.scales = True, []
        if ctx.config.fp8_format is not None:
            self._use_fp8(ctx, pieces.load("fp8").Linear)
        self.autocast: AbstractContextManager = nullcontext()
        if ctx.config.autocast:
            self._use_autocast(torch.float16 if ctx.config.fp16 else torch.bfloat16)
        save_memory(ctx, self.stage)

    def _use_autocast(self, dtype: torch.dtype) -> None:
        """Run the forward pass in your Autocast, and the linear layers as plain operations.

        The course's linear layers return the dtype of their input, and Autocast decides here.
        Attention is one operation, which takes what it gets; its mask has to have that dtype.
        """
        self.autocast = pieces.load("autocast").Autocast(dtype)
        for module in self.stage.decoder.modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear):
                module.forward = partial(F.linear, weight=module.weight, bias=module.bias)
            if getattr(module, "mask", None) is not None:
                module.mask = module.mask.to(dtype)
        words, norm = self.stage.embedding.word_embeddings, self.stage.decoder.final_layernorm
        self.stage.logits = lambda x: F.linear(norm(x), words.weight)

    def _use_fp8(self, ctx: Context, linear: type[nn.Linear]) -> None:
        """Replace the forward pass of the transformer layers' linear layers, not their parameters.

        The embeddings and the output layer stay in 16 bits, as in pretrain_gpt.py.
        """
        for module in self.stage.decoder.modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear):
                outputs, inputs = module.weight.shape
                layer = linear(inputs, outputs, device="meta")
                layer.weight, layer.bias = module.weight, module.bias
                layer.recipe = self._recipe(ctx)
                module.forward = lambda x, layer=layer: layer(x, self.first_micro_batch)

    def _recipe(self, ctx: Context) -> object:
        """Return your recipe for one linear layer, as --fp8-recipe selects it."""
        config, device = ctx.config, ctx.device.torch_device
        if config.fp8_recipe == "blockwise":
            return pieces.load("blocks").Blocks()
        if config.fp8_recipe == "mxfp8":
            return pieces.load("mx").MX()
        per_tensor = pieces.load("fp8").PerTensor
        if config.fp8_recipe == "tensorwise":
            return per_tensor()
        make = pieces.load("delayed").DelayedScale
        delayed = {
            role: SharedScale(make(torch.finfo(dtype).max, config.fp8_amax_history_len,
                                   config.fp8_margin), device)
            for role, dtype in (("input", torch.float8_e4m3fn), ("weight", torch.float8_e4m3fn),
                                ("grad", torch.float8_e5m2))}
        self.scales.extend(delayed.values())
        return per_tensor(delayed)

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Return the mean loss over the tokens of a micro-batch (fp32, one element)."""
        with self.autocast:
            loss = self.stage(None, batch) / batch.loss_mask.sum()
        self.first_micro_batch = False
        return loss

    def end_step(self, ranks: Group) -> None:
        """Advance delayed scaling, on several ranks with the amaxes that your amaxes.py shares."""
        amaxes = [scale.amax for scale in self.scales]
        if amaxes and ranks.size > 1:
            amaxes = pieces.load("amaxes").share_amaxes(amaxes, ranks.process_group)
        for scale, amax in zip(self.scales, amaxes, strict=True):
            scale.end_step(amax)
        self.first_micro_batch = True


def save_memory(ctx: Context, stage: Stage) -> None:
    """Route the layers and their attention through your files of lab 06, as the flags request."""
    config = ctx.config
    attentions = [layer.self_attention for layer in stage.decoder.layers.values()]
    if config.tiled_attention:
        tiled = pieces.load("attention").attention
        for attention in attentions:
            attention.core_attention = lambda _dropout, *heads: tiled(
                *(one.transpose(0, 1) for one in heads)).transpose(0, 1)
    if config.recompute_granularity == "selective":
        checkpoint = pieces.load("checkpointing").checkpoint
        for attention in attentions:
            attention.core_attention = partial(checkpoint, attention.core_attention)
    if config.recompute_granularity == "full" or config.activation_memory_mb is not None:
        stage.checkpointing = Recomputation(ctx, stage)
    elif config.offload_activations:
        stage.checkpointing = run_layers
    if config.offload_activations:
        offload, run = pieces.load("offload").Offload, stage.checkpointing
        parameters = list(stage.decoder.layers.parameters())

        def offloaded(layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
            with offload(parameters):
                return run(layers, x)

        stage.checkpointing = offloaded


def run_layers(layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
    """Run hidden states x [s, b, h] through layers; return the same shape."""
    for layer in layers:
        x = layer(x)
    return x


class Recomputation:
    """Runs the layers, some groups of them in your `checkpoint`.

    With --recompute-method uniform, the groups are all layers, N at a time; with block, they are
    the first N layers, one by one. With --activation-memory-mb, your `place` chooses them, when the
    first micro-batch has shown what a layer saves.
    """

    def __init__(self, ctx: Context, stage: Stage) -> None:
        self.ctx, self.checkpoint = ctx, pieces.load("checkpointing").checkpoint
        self.parameters = list(stage.decoder.layers.parameters())
        config, count = ctx.config, ctx.config.num_layers
        size = config.recompute_num_layers
        self.groups: list[tuple[int, int]] | None = None  # (start, stop) of layers
        if config.recompute_method == "uniform":
            self.groups = [(at, min(at + size, count)) for at in range(0, count, size)]
        elif config.recompute_method == "block":
            self.groups = [(at, at + 1) for at in range(min(size, count))]

    def __call__(self, layers: Sequence[Layer], x: torch.Tensor) -> torch.Tensor:
        if self.groups is None:
            self.groups = self._plan(layers, x)
        at = 0
        for start, stop in [*self.groups, (len(layers), len(layers))]:
            x = run_layers(layers[at:start], x)
            if start < stop:
                x = self.checkpoint(run_layers, layers[start:stop], x)
            at = stop
        return x

    def _plan(self, layers: Sequence[Layer], x: torch.Tensor) -> list[tuple[int, int]]:
        """Measure the first layer with your SavedBytes, and let your `place` choose the groups.

        Raises UserError if no plan fits.
        """
        with pieces.load("saved").SavedBytes(self.parameters) as saved:
            out = layers[0](x.detach().requires_grad_())  # its graph holds what is saved
        size = saved.bytes
        del out
        count, budget = len(layers), self.ctx.config.activation_memory_mb
        try:
            groups = pieces.load("placement").place(
                [1.0] * count, [size] * count, [x.nbytes] * count, int(1e6 * budget))
        except ValueError as error:
            raise UserError(f"--activation-memory-mb {budget:g}: {error}; a layer saves "
                            f"{size / 1e6:.1f} MB, {x.nbytes / 1e6:.1f} MB of it for its input"
                            ) from None
        again = sum(stop - start for start, stop in groups)
        self.ctx.print_rank_0(f"a layer saves {size / 1e6:.1f} MB per micro-batch; recomputing "
                              f"{again} of {count} layers in groups {groups}")
        return [tuple(group) for group in groups]


class OneProcess(nn.Module):
    """DataParallel's interface for a single process, which has nothing to communicate."""

    def __init__(self, module: nn.Module, all_reduce: Callable | None = None) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        return self.module(batch)

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def begin(self, samples: int) -> None:
        pass

    def finish(self) -> None:
        pass


def join_ranks(config: LoopConfig) -> None:
    """Create the default process group; a rank on a GPU communicates with NCCL, others with Gloo.

    torchrun sets RANK, WORLD_SIZE, and the address where the ranks rendezvous.
    """
    join(config, timedelta(minutes=config.distributed_timeout_minutes),
         "nccl" if config.device == "cuda" else "gloo")


def own_samples(consumed: int, batch: int, rank: int, ranks: int) -> range:
    """Return the numbers of a rank's samples in the step that follows `consumed` samples.

    Args:
        consumed: samples of all steps before.
        batch: samples per step, of all ranks together; divisible by `ranks`.
        rank: this rank.
        ranks: the number of ranks.
    """
    return sample_numbers(consumed, 0, batch // ranks, rank, ranks)


def connect(config: LoopConfig) -> Context:
    """Join the other ranks. Each rank is a data-parallel replica with its own device.

    Raises UserError if `connect` of your launch.py returns another device.
    """
    device, notes = choose_device(config, int(os.environ.get("LOCAL_RANK", 0)))
    launch = pieces.load("launch")
    if launch is None:
        join_ranks(config)
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
    rank, ranks = dist.get_rank(), dist.get_world_size()
    alone = Group((rank,), 0, None)
    replicas = Group(tuple(range(ranks)), rank, dist.group.WORLD) if ranks > 1 else alone
    groups = dict.fromkeys(GROUPS, alone) | {"dp": replicas, "replicas": replicas}
    ctx = Context(config, Grid(rank, ranks, **groups), device)
    for note in notes:
        ctx.print_rank_0(note)
    if device.torch_device.type == "cpu":
        cap_threads(ctx)  # ranks on one machine share its cores
    return ctx


def data_parallel(config: LoopConfig) -> type[nn.Module]:
    """Return your DataParallel, or OneProcess if there is no ddp.py."""
    ddp = pieces.load("ddp")
    if ddp is None and config.world_size > 1:
        raise UserError(f"{config.world_size} ranks need mytrainer/ddp.py, which you write in "
                        "lab 04; until then, start one: python code/my_trainer.py")
    return OneProcess if ddp is None else ddp.DataParallel


class MixedPrecision:
    """An optimizer over fp32 master weights. Your precision.py takes the place of this class.

    16-bit parameters have fp32 copies, which are updated and then rounded (Micikevicius et al.
    2018, section 3.1); fp32 parameters are their own.
    """

    def __init__(self, parameters: Iterable[nn.Parameter],
                 make_optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
        """Create the master weights.

        Args:
            parameters: those of the model.
            make_optimizer: returns an optimizer, given the master weights in the same order.
        """
        self.parameters = list(parameters)
        for parameter in self.parameters:  # micro-batches add up in fp32, as in Megatron-LM
            parameter.grad_dtype = torch.float32
        self.masters = [parameter if parameter.dtype == torch.float32 else
                        parameter.detach().float() for parameter in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        for parameter in (*self.parameters, *self.masters):
            parameter.grad = None

    def step(self) -> None:
        """Update the master weights, and round them to the parameters."""
        pairs = [pair for pair in zip(self.parameters, self.masters, strict=True)
                 if pair[0] is not pair[1]]
        for parameter, master in pairs:
            master.grad = parameter.grad
        self.optimizer.step()
        for parameter, master in pairs:
            parameter.data.copy_(master)


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) in mixed precision, which ends the step of FP8 layers."""

    def __init__(self, ctx: Context, model: GPT) -> None:
        self.gpt, self.ranks, config = model, ctx.grid.dp, ctx.config
        precision = None if config.precision == "fp32" else pieces.load("precision")
        make = MixedPrecision if precision is None else precision.MixedPrecision
        self.mixed = make(model.parameters(), partial(adamw, config))

    @property
    def param_groups(self) -> list[dict]:
        return self.mixed.param_groups

    def zero_grad(self) -> None:
        self.mixed.zero_grad()

    def step(self) -> None:
        """Update the parameters, and the scales of FP8 layers."""
        self.mixed.step()
        self.gpt.end_step(self.ranks)


def adamw(config: LoopConfig, masters: Sequence[torch.Tensor]) -> torch.optim.AdamW:
    """Return AdamW over the master weights; biases and layer norms do not decay."""
    matrices = [master for master in masters if master.dim() > 1]
    vectors = [master for master in masters if master.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=config.lr,
        betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps,
        weight_decay=config.weight_decay, fused=True)


def loss_scaler(config: LoopConfig) -> object | None:
    """Return your LossScaler as the flags describe it, or None without --fp16.

    pretrain_gpt.py divides each rank's loss by the number of ranks before the backward pass, and
    your DataParallel divides the gradients after it. So with a scale that is smaller by this
    factor, the 16-bit gradients of the two are the same, and so are their overflows.
    """
    if not config.fp16:
        return None
    make, ranks = pieces.load("scaler").LossScaler, config.world_size
    if config.loss_scale is not None:  # a scale that is its own minimum, and never grows
        return make(config.loss_scale / ranks, config.loss_scale / ranks, math.inf, 1)
    return make(config.initial_loss_scale / ranks, config.min_loss_scale / ranks,
                config.loss_scale_window, config.hysteresis)


class StepLog:
    """Prints a line every --log-interval steps, as pretrain_gpt.py does, and for TensorBoard."""

    def __init__(self, ctx: Context, learning_rate: Callable[[int], float], gpt: GPT,
                 scaler: object | None = None) -> None:
        self.ctx, self.learning_rate, self.gpt, self.scaler = ctx, learning_rate, gpt, scaler
        self.board, self.status = TensorBoard(ctx), Status(ctx)
        self.losses, self.steps, self.started = [], 0, ctx.device.now()  # since the last line
        self.skipped_before = self.skipped = 0  # steps: up to the last line, and since

    def __call__(self, iteration: int, loss: torch.Tensor, norm: torch.Tensor,
                 skipped: bool = False) -> None:
        """Note the result of a step, on every rank.

        Args:
            iteration: number of the step, from 1.
            loss: mean loss over the global batch, one element.
            norm: gradient norm before clipping, one element.
            skipped: whether a gradient overflowed, so that the step updated nothing.
        """
        config, ctx = self.ctx.config, self.ctx
        self.steps += 1
        self.skipped += skipped
        if not skipped:
            self.losses.append(torch.as_tensor(loss).detach())
        if iteration % config.log_interval:
            return
        seconds = (ctx.device.now() - self.started) / self.steps
        consumed, batch = iteration * config.global_batch_size, config.global_batch_size
        advanced = consumed - batch * (self.skipped_before + self.skipped)
        shown = {"loss": ctx.read(torch.stack(self.losses).mean()) if self.losses else None,
                 "norm": None if skipped else ctx.read(torch.as_tensor(norm))}
        nans = 0 if shown["loss"] is None else int(math.isnan(shown["loss"]))
        scale = 1.0 if self.scaler is None else float(self.scaler.scale) * config.world_size
        ctx.print_rank_0(iteration_line(
            config, iteration=iteration, consumed=consumed, milliseconds=1000 * seconds,
            lr=self.learning_rate(advanced), zeros=None if skipped else self._zeros(),
            params_norm=None, nans=nans, loss_scale=scale, skipped=self.skipped, **shown))
        self.board.scalar("lm loss", shown["loss"], iteration, consumed)
        self.board.scalar("grad-norm", shown["norm"], iteration, consumed)
        if self.scaler is not None:
            self.board.scalar("loss-scale", scale, iteration, consumed)
        self.status.step(iteration, seconds, shown)  # for `lab top`
        self.skipped_before += self.skipped
        self.losses, self.steps, self.skipped, self.started = [], 0, 0, ctx.device.now()

    def _zeros(self) -> float | None:
        """Return the zeros in the gradient, as your histogram.py counts them, if asked for."""
        if not self.ctx.config.log_num_zeros_in_grad or not self.ctx.device.has_values:
            return None
        count = pieces.load("histogram").log2_histogram
        return self.ctx.read(sum(count(parameter.grad)[0] for parameter in self.gpt.parameters()))

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

    Args:
        data: the training data.
        shares: own_samples, or that of your launch.py.
    """
    config, rank, ranks = data.ctx.config, data.ctx.grid.rank, data.ctx.grid.world_size
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
        return [data.micro_batch(numbers[start:start + size], consumed // batch, train=True)
                for start in range(0, len(numbers), size)]

    return batches


def train(model: nn.Module, optimizer: Optimizer, batches: Callable[[int], Sequence[MicroBatch]],
          learning_rate: Callable[[int], float], log: StepLog, args: LoopConfig,
          scaler: object | None = None) -> None:
    """Train for args.train_iters steps. Your train.py takes the place of this function.

    Args:
        model: in DataParallel or OneProcess; returns the mean loss of a micro-batch.
        optimizer: updates the parameters.
        batches: returns this rank's micro-batches of the next step, given the samples consumed by
            all steps before.
        learning_rate: returns the learning rate of the next step, given the same.
        log: called after each step with its number, from 1, and the loss of the global batch and
            the gradient norm before clipping, each as a tensor, and whether it was skipped.
        args: the flags.
        scaler: your LossScaler; None without --fp16.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = args.samples[rank] if args.samples is not None else args.global_batch_size // ranks
    share, consumed, advanced = own / args.global_batch_size, 0, 0  # samples
    device = next(model.parameters()).device
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(advanced)
        optimizer.zero_grad()
        if args.samples is not None:
            model.begin(own)  # before the backward pass, which sends the gradients
        loss, micro_batches = torch.zeros((), device=device), batches(consumed)
        for number, batch in enumerate(micro_batches, start=1):
            # Gradients accumulate locally; only the last backward pass starts all-reduces.
            with nullcontext() if number == len(micro_batches) else model.no_sync():
                part = model(batch) / len(micro_batches)
                (part if scaler is None else part * scaler.scale).backward()
            loss += part.detach() * share
        model.finish()  # from here on, every rank has the gradient of the global batch
        skipped = scaler is not None and scaler.unscale(model.parameters())
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
        if not skipped:
            optimizer.step()
            advanced += args.global_batch_size
        if scaler is not None:
            scaler.update(skipped)
        consumed += args.global_batch_size
        dist.all_reduce(loss)
        log(iteration, loss, norm, skipped)


def main(wrapper: type[nn.Module] | None = None) -> None:
    """Train with the flags of the command line.

    Args:
        wrapper: the class that makes replicas of the model; None for data_parallel's choice.
    """
    config = flags.parse(sys.argv[1:])
    wrapper = wrapper or data_parallel(config)
    flags.require_pieces(config, wrapper)
    if config.ring_all_reduce:
        wrapper = partial(wrapper, all_reduce=pieces.load("collectives").all_reduce)
    print_world_size(config, notes=[])
    tokenizer = Vocabulary(config.vocab_file, config.merge_file)
    ctx = connect(config)
    text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
    vocab_size = pad_vocab_size(tokenizer.vocab_size, config.make_vocab_size_divisible_by, 1)
    gpt = GPT(ctx, vocab_size)
    model = wrapper(gpt)
    launch = pieces.load("launch")
    # With unequal shares, this file's loop averages the losses by the number of samples.
    loop = pieces.load("train") if config.samples is None else None
    if config.precision != "fp32":
        pieces.load("precision")  # for the line that names the files
    parameters = sum(weight.numel() for weight in model.parameters())
    ctx.print_rank_0(f"training {parameters:,} parameters on {ctx.grid.world_size} rank(s) with "
                     f"{pieces.describe()}")
    learning_rate, scaler = rate_schedule(config), loss_scaler(config)
    log = StepLog(ctx, learning_rate, gpt, scaler)
    data = Batches(ctx, text, tokenizer.eod, "training")
    # Within no_sync, no backward pass communicates: finish() averages all gradients at the end.
    with nullcontext() if config.overlap_grad_reduce else model.no_sync():
        (loop.train if loop else train)(
            model, Optimizer(ctx, gpt),
            batches_of(data, launch.own_samples if launch else own_samples), learning_rate, log,
            config, **({} if scaler is None else {"scaler": scaler}))
    log.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    pieces.run(main)

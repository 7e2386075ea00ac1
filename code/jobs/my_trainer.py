"""Train a GPT with the pieces that you write in mytrainer/. From the workspace:

    python code/my_trainer.py FLAGS                            one process
    torchrun --nproc_per_node 2 code/my_trainer.py FLAGS       two ranks, with your ddp.py
    sbatch code/my_trainer.sh FLAGS                            two nodes with two ranks each
    virtualrun --gpus h100:8 --solo code/my_trainer.py FLAGS   eight virtual H100s

The model, the data, and the flags are those of pretrain_gpt.py, so the same flags give the same
losses. The part that makes several ranks train one model is yours, and with --bf16 --fp8-format
hybrid, so are the linear layers and the recipes that --fp8-recipe selects. With
--samples-per-rank, ranks process different numbers of samples. The loop has no validation and no
checkpoints yet.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import flags, pieces
from minimegatron.arguments import Config
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
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
    """

    def __init__(self, ctx: Context, vocab_size: int) -> None:
        """Create the model; with --fp8-format, your FP8 layer computes its linear layers."""
        super().__init__()
        plain = replace(ctx, config=replace(ctx.config, fp8_format=None))
        self.stage = Stage(plain, vocab_size, range(ctx.config.num_layers))
        for parameter in self.parameters():  # micro-batches add up in fp32, as in Megatron-LM
            parameter.grad_dtype = torch.float32
        self.first_micro_batch, self.scales = True, []
        if ctx.config.fp8_format is not None:
            self._use_fp8(ctx, pieces.load("fp8").Linear)

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

    def forward(self, batch: MicroBatch, first_micro_batch: bool) -> torch.Tensor:
        """Return the mean loss over the tokens of a micro-batch (fp32, one element).

        Args:
            batch: the micro-batch.
            first_micro_batch: whether it is the first one of its step, so weights are new.
        """
        self.first_micro_batch = first_micro_batch
        return self.stage(None, batch) / batch.loss_mask.sum()

    def end_step(self, ranks: Group) -> None:
        """Advance delayed scaling, on several ranks with the amaxes that your amaxes.py shares."""
        amaxes = [scale.amax for scale in self.scales]
        if amaxes and ranks.size > 1:
            amaxes = pieces.load("amaxes").share_amaxes(amaxes, ranks.process_group)
        for scale, amax in zip(self.scales, amaxes, strict=True):
            scale.end_step(amax)


class OneProcess(nn.Module):
    """DataParallel's interface for a single process, which has nothing to communicate."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: MicroBatch, first_micro_batch: bool) -> torch.Tensor:
        return self.module(batch, first_micro_batch)

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def begin(self, samples: int) -> None:
        pass

    def finish(self) -> None:
        pass


def connect(config: Config) -> Context:
    """Join the other ranks. Each rank is a data-parallel replica with its own device."""
    device, notes = choose_device(config, int(os.environ.get("LOCAL_RANK", 0)))
    # torchrun sets RANK, WORLD_SIZE, and the address where the ranks rendezvous.
    join(config, timedelta(minutes=config.distributed_timeout_minutes), device.backend)
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


def data_parallel(config: Config) -> type[nn.Module]:
    """Return your DataParallel, or OneProcess if there is no ddp.py."""
    ddp = pieces.load("ddp")
    if ddp is not None:
        return ddp.DataParallel
    if config.world_size > 1:
        raise UserError(f"{config.world_size} ranks need mytrainer/ddp.py, which you write in "
                        "lab 04; until then, start one: python code/my_trainer.py")
    return OneProcess


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov & Hutter 2019) over fp32 master weights.

    16-bit parameters have fp32 copies, which are updated and then rounded (Micikevicius et al.
    2018, section 3.1); fp32 parameters are their own.
    """

    def __init__(self, config: Config, model: nn.Module) -> None:
        self.masters = {parameter: parameter if parameter.dtype == torch.float32 else
                        parameter.detach().float() for parameter in model.parameters()}
        matrices = [master for master in self.masters.values() if master.dim() > 1]
        vectors = [master for master in self.masters.values() if master.dim() == 1]
        super().__init__(  # biases and layer norms do not decay
            [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2), eps=config.adam_eps,
            weight_decay=config.weight_decay, fused=True)

    def clip_and_step(self, clip: float) -> torch.Tensor:
        """Clip the gradients to a norm, take a step, and return the norm before clipping."""
        rounded = {parameter: master for parameter, master in self.masters.items()
                   if parameter is not master}
        for parameter, master in rounded.items():
            master.grad = parameter.grad
        norm = nn.utils.clip_grad_norm_(self.masters.values(), clip or math.inf)
        self.step()
        for parameter, master in rounded.items():
            parameter.data.copy_(master)
        return norm


def own_batches(data: Batches, consumed: int, iteration: int) -> list[MicroBatch]:
    """Return this rank's micro-batches of a step: equally many on each rank, or --samples-per-rank.

    Args:
        data: the training data.
        consumed: samples of all steps before.
        iteration: number of the step.
    """
    samples, rank = data.ctx.config.samples, data.ctx.grid.dp.index
    if samples is None:
        return data.step(consumed, iteration)
    size, first = data.ctx.config.micro_batch_size, consumed + sum(samples[:rank])
    return [data.micro_batch(range(start, start + size), iteration, train=True)
            for start in range(first, first + samples[rank], size)]


def step(model: nn.Module, optimizer: AdamW, batches: Sequence[MicroBatch], clip: float,
         samples: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Take one optimizer step. Return this rank's mean loss and the gradient norm.

    Args:
        model: in DataParallel or OneProcess.
        optimizer: with the learning rate of this step.
        batches: this rank's micro-batches; a rank without any still joins all communication.
        clip: the largest gradient norm; 0 does not clip.
        samples: the number of samples in `batches`; None if all ranks have equally many.
    """
    model.zero_grad()
    if samples is not None:
        model.begin(samples)  # before the backward pass, which sends the gradients
    losses = []
    for number, batch in enumerate(batches, start=1):
        # Gradients accumulate locally; only the last backward pass starts all-reduces.
        with nullcontext() if number == len(batches) else model.no_sync():
            loss = model(batch, number == 1) / len(batches)
            loss.backward()
        losses.append(loss.detach())
    model.finish()  # from here on, every rank has the gradient of the global batch
    loss = (torch.stack(losses).sum() if losses
            else torch.zeros((), device=next(model.parameters()).device))
    return loss, optimizer.clip_and_step(clip)


def train(ctx: Context, data: Batches, model: nn.Module, gpt: GPT) -> None:
    """Train for --train-iters steps, and print a line every --log-interval steps.

    Args:
        ctx: this rank.
        data: the training data.
        model: `gpt` in DataParallel or OneProcess.
        gpt: the model.
    """
    config, board, status, losses = ctx.config, TensorBoard(ctx), Status(ctx), []
    optimizer, learning_rate = AdamW(config, model), LearningRate(config)
    own = (config.samples[ctx.grid.dp.index] if config.samples is not None
           else config.global_batch_size // ctx.grid.dp.size)
    consumed, started = 0, ctx.device.now()
    for iteration in range(1, config.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate.value().item()
        batches = own_batches(data, consumed, iteration - 1)
        loss, norm = step(model, optimizer, batches, config.clip_grad,
                          None if config.samples is None else own)
        gpt.end_step(ctx.grid.dp)
        losses.append(loss)
        learning_rate.samples = consumed = consumed + config.global_batch_size
        if iteration % config.log_interval == 0:
            mean = torch.stack(losses).mean() * (own / config.global_batch_size)
            ctx.grid.dp.all_reduce(mean)
            seconds = (ctx.device.now() - started) / len(losses)
            shown = {"loss": ctx.read(mean), "norm": ctx.read(norm)}
            ctx.print_rank_0(iteration_line(
                config, iteration=iteration, consumed=consumed, milliseconds=1000 * seconds,
                lr=learning_rate.value().item(), zeros=None, params_norm=None,
                nans=int(math.isnan(shown["loss"])), **shown))
            board.scalar("lm loss", shown["loss"], iteration, consumed)
            board.scalar("grad-norm", shown["norm"], iteration, consumed)
            status.step(iteration, seconds, shown)  # for `lab top`
            losses, started = [], ctx.device.now()
    board.close()
    status.update(state="done")


def main(wrapper: type[nn.Module] | None = None) -> None:
    """Train with the flags of the command line.

    Args:
        wrapper: the class that makes replicas of the model; None for data_parallel's choice.
    """
    config = flags.parse(sys.argv[1:])
    wrapper = wrapper or data_parallel(config)
    flags.require_pieces(config, wrapper)
    print_world_size(config, notes=[])
    tokenizer = Vocabulary(config.vocab_file, config.merge_file)
    ctx = connect(config)
    text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
    vocab_size = pad_vocab_size(tokenizer.vocab_size, config.make_vocab_size_divisible_by, 1)
    gpt = GPT(ctx, vocab_size)
    model = wrapper(gpt)
    parameters = sum(weight.numel() for weight in model.parameters())
    ctx.print_rank_0(f"training {parameters:,} parameters on {ctx.grid.world_size} rank(s) with "
                     f"{pieces.describe()}")
    train(ctx, Batches(ctx, text, tokenizer.eod, "training"), model, gpt)
    dist.destroy_process_group()


if __name__ == "__main__":
    pieces.run(main)

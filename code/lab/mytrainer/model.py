"""The model of my_trainer.py: the course's GPT, whose layers call the student's files.

autocast.py (lab 05), the files of lab 06, and those of lab 13 replace parts of the forward and
backward pass; the parameters stay the course's, so losses can be compared with pretrain_gpt.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from lab.mytrainer import pieces
from minimegatron.context import Context, MicroBatch
from minimegatron.errors import UserError
from minimegatron.grid import Group
from minimegatron.model.gpt import Stage
from minimegatron.model.tensor_parallel import ColumnParallelLinear, RowParallelLinear

Layer = Callable[[torch.Tensor], torch.Tensor]  # maps hidden states [s, b, h] to the same shape


class SharedScale:
    """A tensor's DelayedScale, which is updated once per step with the amax over all ranks.

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
        scales: the delayed scales of the linear layers' tensors; empty for other recipes.
        first_micro_batch: whether the next micro-batch is the first of its step, so that FP8
            layers must quantize the updated weights.
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

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer layers, in the order of the forward pass."""
        return list(self.stage.decoder.layers.values())

    def _use_autocast(self, dtype: torch.dtype) -> None:
        """Run the forward pass in your Autocast, and the linear layers as plain operations.

        The course's linear layers return the dtype of their input; here, Autocast chooses it.
        Attention is a single operation that runs in its input's dtype, so its mask must match.
        """
        self.autocast = pieces.load("autocast").Autocast(dtype)
        for module in self.stage.decoder.modules():
            if isinstance(module, ColumnParallelLinear | RowParallelLinear):
                module.forward = partial(F.linear, weight=module.weight, bias=module.bias)
            if getattr(module, "mask", None) is not None:
                module.mask = module.mask.to(dtype)
        stage, norm = self.stage, self.stage.decoder.final_layernorm
        words = stage.embedding.word_embeddings if stage.is_tied else stage.output_layer
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
        """Update the delayed scales; on several ranks, your amaxes.py shares the amaxes first."""
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
    """Runs the layers, with some groups of them in your `checkpoint`.

    With --recompute-method uniform, all layers are recomputed in groups of N; with block, the first
    N layers are, one by one. With --activation-memory-mb, the first micro-batch shows what a layer
    saves, with and without the core of its attention, and your `place` chooses the groups, and the
    layers of which only the core is recomputed.
    """

    def __init__(self, ctx: Context, stage: Stage) -> None:
        self.ctx, self.checkpoint = ctx, pieces.load("checkpointing").checkpoint
        self.parameters = list(stage.decoder.layers.parameters())
        self.attentions = [layer.self_attention for layer in stage.decoder.layers.values()]
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
        """Measure the first layer with your SavedBytes, and let your `place` choose.

        Returns the groups; the attention of layers whose core is recomputed is in `checkpoint` from
        then on. Raises UserError if no plan fits.
        """
        size = self._saved_bytes(layers[0], x)
        plain = self.attentions[0].core_attention
        self._checkpoint_core(0)
        kept = self._saved_bytes(layers[0], x)
        self.attentions[0].core_attention = plain
        config, count = self.ctx.config, len(layers)
        budget, s, h = config.activation_memory_mb, config.seq_length, config.hidden_size
        # Of a layer's 24sbh^2 + 4s^2bh FLOPs, the core has the second part (Narayanan et al. 2021).
        core = None if kept >= size else [(s / (6 * h + s), kept)] * count
        try:
            plan = pieces.load("placement").place(
                [1.0] * count, [size] * count, [x.nbytes] * count, int(1e6 * budget), core)
        except ValueError as error:
            raise UserError(f"--activation-memory-mb {budget:g}: {error}; a layer saves "
                            f"{size / 1e6:.1f} MB, {x.nbytes / 1e6:.1f} MB of it for its input"
                            ) from None
        selective = [one for one in plan if isinstance(one, int)]
        groups = [tuple(one) for one in plan if not isinstance(one, int)]
        for number in selective:
            self._checkpoint_core(number)
        again = sum(stop - start for start, stop in groups)
        cores = f", and the attention core of layers {selective}" if selective else ""
        self.ctx.print_rank_0(f"a layer saves {size / 1e6:.1f} MB per micro-batch; recomputing "
                              f"{again} of {count} layers in groups {groups}{cores}")
        return groups

    def _saved_bytes(self, layer: Layer, x: torch.Tensor) -> int:
        """Return what a layer saves for hidden states x, in bytes, by your SavedBytes."""
        with pieces.load("saved").SavedBytes(self.parameters) as saved:
            out = layer(x.detach().requires_grad_())  # its graph holds what is saved
        size = saved.bytes
        del out
        return size

    def _checkpoint_core(self, number: int) -> None:
        attention = self.attentions[number]
        attention.core_attention = partial(self.checkpoint, attention.core_attention)

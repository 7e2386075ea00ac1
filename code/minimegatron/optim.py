"""AdamW on flat fp32 buffers, with clipping by the global gradient norm and loss scaling.

Parameters, gradients, and optimizer states are flat buffers in one order, that of data parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.context import Context, params_dtype
from minimegatron.model import ops
from minimegatron.model.parameters import ParamGroup
from minimegatron.parallel.ddp import BufferRange, DistributedDataParallel, joined, length
from minimegatron.timers import Timers


class LearningRate:
    """The schedule, and how far the run is in it.

    The first step uses lr(0), which is 0 with a warm-up. The log shows the value after the step,
    lr(global batch size), as Megatron's does.

    Attributes:
        settings: under the names of Megatron's checkpoints.
        samples: samples so far, without those of skipped steps. Once a step may be skipped it is a
            tensor, because only the device knows.
    """

    def __init__(self, config: Config) -> None:
        self.settings = {
            "learning rate": config.lr, "minimum learning rate": config.min_lr,
            "warmup iterations": config.lr_warmup_samples,
            "total number of iterations": config.lr_decay_samples,
            "decay style": config.lr_decay_style,
        }
        self.samples: int | torch.Tensor = 0

    def value(self) -> torch.Tensor:
        """Return the learning rate after `samples` samples, fp64, one element."""
        peak, lowest, warmup, decay, style = self.settings.values()
        n = torch.as_tensor(self.samples, dtype=torch.float64)
        rising = (n / warmup).clamp(max=1.0) if warmup > 0 else torch.ones_like(n)
        if style == "constant":
            return peak * rising
        ratio = ((n - warmup) / (decay - warmup)).clamp(0.0, 1.0)
        if style == "inverse-square-root":
            slow = peak * (max(warmup, 1) / n.clamp(min=max(warmup, 1))).sqrt()
            falling = torch.where(n > decay, lowest, slow.clamp(min=lowest))
        else:
            left = 1 - ratio if style == "linear" else 0.5 * (torch.cos(math.pi * ratio) + 1)
            falling = lowest + left * (peak - lowest)
        return falling * rising


class LossScaler:
    """The factor that multiplies the loss, adapted without reading a value from the device.

    Attributes (tensors of one element, on the device):
        scale: the factor, fp32. With --loss-scale it is constant.
        growth: steps without an overflow since the scale last changed, int32.
        hysteresis: overflows that remain before the scale is halved, int32.
    """

    def __init__(self, ctx: Context) -> None:
        config, on = ctx.config, ctx.device.torch_device
        self.dynamic = config.loss_scale is None
        self.lowest, self.window = config.min_loss_scale, config.loss_scale_window
        self.patience = config.hysteresis
        first = config.initial_loss_scale if self.dynamic else config.loss_scale
        self.scale = torch.full((), first, dtype=torch.float32, device=on)
        self.growth = torch.zeros((), dtype=torch.int32, device=on)
        self.hysteresis = torch.full((), self.patience, dtype=torch.int32, device=on)

    def update(self, overflow: torch.Tensor) -> None:
        """Adapt the scale after a step.

        An overflow (bool, one element, the same on every rank) uses up one unit of hysteresis;
        without any left, it halves the scale. `window` steps in a row without an overflow double
        the scale and restore the hysteresis.
        """
        if not self.dynamic:
            return
        self.growth.copy_(torch.where(overflow, 0, self.growth + 1))
        self.hysteresis.sub_(overflow.int())
        halve = overflow & (self.hysteresis <= 0)
        double = self.growth == self.window
        halved = (self.scale / 2).clamp(min=self.lowest)
        higher = torch.where(double, 2 * self.scale, self.scale)
        self.scale.copy_(torch.where(halve, halved, higher))
        self.growth.masked_fill_(double, 0)
        self.hysteresis.masked_fill_(double, self.patience)


MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over one rank's part of the model.

    Biases and norms are not decayed. The model's parameters become views of `param_buffer`.

    Attributes:
        param_buffer: the model's parameters in its dtype, [n], or [m] if they are sharded, too.
        main_params: fp32 master weights [m] of a 16-bit model; None in fp32.
        host: the part whose state is in host memory, with --optimizer-cpu-offload; else None.
        on_device: the ranges of the other part, which the device updates.
        main_grads: fp32 copy of all 16-bit gradients, from `step` to `zero_grad`; else None.
        moments: Adam's two moments, fp32 [m] each: m is n, or n/d if sharded, less what `host` has.
        advanced: updates in the last step: 1, or with a loss scale a tensor, 0 after an overflow.
        steps: updates so far, one element.
    """

    def __init__(self, ctx: Context, ddp: DistributedDataParallel) -> None:
        """Create the optimizer states, and move the parameters into a flat buffer."""
        config, self.grid, self.ddp = ctx.config, ctx.grid, ddp
        self.clip, self.has_values = config.clip_grad, ctx.device.has_values
        self.weight_decay = config.weight_decay
        self.adam = {"beta1": config.adam_beta1, "beta2": config.adam_beta2, "eps": config.adam_eps}
        self.param_buffer = ddp.make_param_buffer(params_dtype(config))
        runs = self._runs()
        self.ranges = self._owned_ranges(runs)
        self.partial = joined([part.grads for part in self.ranges if part.partial]
                              if ddp.shards_grads else
                              [elements for _, partial, elements in runs if partial])
        # Ranks with different elements: sums over the model go through these groups.
        self.norm_groups = [self.grid.model, *ddp.shard_groups]
        self.owned = held = sum(map(length, ddp.owned))
        self.host, self.on_device = None, self.ranges
        if config.optimizer_cpu_offload:
            from minimegatron.offload import HostPart

            self.host = HostPart(ctx, self.ranges, self.owned, MOMENTS)
            self.on_device, held = self.host.on_device, self.host.first
        like = {"dtype": torch.float32, "device": ddp.grad_buffer.device}
        self.moments = {name: torch.zeros(held, **like) for name in MOMENTS}
        self.main_params = None if config.precision == "fp32" else torch.empty(held, **like)
        self.main_grads: torch.Tensor | None = None
        self.reload_model_params()
        self.scaler = LossScaler(ctx) if config.fp16 else None
        self.advanced: int | torch.Tensor = 1
        # The fused kernel reads the count on the parameters' device; without values, nobody does.
        self.steps = torch.zeros((), device=like["device"] if self.has_values else "cpu")

    def _runs(self) -> list[tuple[ParamGroup, bool, slice]]:
        """Return the ranges of the flat buffers that belong to one parameter group, each with
        whether its gradients are summed over tensor-parallel ranks, too."""
        specs, runs = self.ddp.specs, []
        for name, place in self.ddp.places.items():
            kind = specs[name].group, "tp" in specs[name].reduced_over
            if runs and runs[-1][:2] == kind and runs[-1][2].stop == place.start:
                place = slice(runs.pop()[2].start, place.stop)
            runs.append((*kind, place))
        return runs

    def _owned_ranges(self, runs: list[tuple[ParamGroup, bool, slice]]) -> list[BufferRange]:
        """Return the ranges that this rank owns, split where a parameter group ends."""
        is_first_tp_rank, ddp = self.grid.tp.index == 0, self.ddp
        ranges, offset = [], 0
        for owned in ddp.owned:
            for group, partial, elements in runs:
                start, end = max(elements.start, owned.start), min(elements.stop, owned.stop)
                if start < end:
                    shard = offset + start - owned.start
                    places = slice(start, end), slice(shard, shard + end - start)
                    counted = (group != ParamGroup.TIED_COPY
                               and (is_first_tp_rank or not group.is_replicated))
                    ranges.append(BufferRange(places[1], places[ddp.shards_grads],
                                              places[ddp.shards_params], group, counted, partial))
            offset += length(owned)
        return ranges

    def reload_model_params(self) -> None:
        """Copy the model's parameters to the master weights, after initialization or a load."""
        if self.main_params is not None:
            copier = self.ddp if self.host is None else self.host
            copier.copy_owned(self.param_buffer, out=self.main_params)

    def zero_grad(self) -> None:
        """Begin a step: free the main gradients, so that activations can use their memory."""
        self.ddp.zero_grad()
        self.main_grads = None

    def all_reduce_replicated_grads(self) -> None:
        """With sequence parallelism, sum the replicated parameters' gradients over the
        tensor-parallel ranks, each of which saw s/t of the tokens (Korthikanti et al. 2022)."""
        pieces = [self.ddp.grad_buffer[elements] for elements in self.partial]
        if not pieces:
            return
        together = pieces[0] if len(pieces) == 1 else torch.cat(pieces)  # one collective for all
        self.grid.tp.all_reduce(together)
        if len(pieces) > 1:
            for piece, total in zip(pieces, together.split([*map(len, pieces)]), strict=True):
                piece.copy_(total)

    def model_norm(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        """Return the Euclidean norm over the whole model of pieces that this rank counts, fp32, one
        element; every rank of the model must call it."""
        norms = [ops.norm(piece) for piece in pieces]
        # A rank may own nothing that counts.
        none = torch.zeros((), device=self.param_buffer.device)
        norm = torch.linalg.vector_norm(torch.stack([none, *norms]))
        if all(group.size == 1 for group in self.norm_groups):
            return norm
        squares = norm.square()
        for group in self.norm_groups:
            group.all_reduce(squares)
        return squares.sqrt()

    def _overflow(self) -> torch.Tensor:
        """Return whether any gradient of the model is inf or NaN, bool, one element."""
        grads = self.ddp.grad_buffer
        largest = [torch.linalg.vector_norm(grads[part.grads], ord=float("inf"))
                   for part in self.ranges]
        overflow = (~torch.stack([grads.new_zeros(()), *largest]).isfinite()).any().float()
        for group in self.norm_groups:
            group.all_reduce(overflow, dist.ReduceOp.MAX)
        return overflow > 0

    def grads_of(self, part: BufferRange) -> torch.Tensor:
        """Return the gradients of a range, in fp32 once `step` has begun."""
        return (self.ddp.grad_buffer[part.grads] if self.main_grads is None
                else self.main_grads[part.shard])

    def step(self, lr: float | torch.Tensor, timers: Timers, counted: torch.Tensor | None = None
             ) -> torch.Tensor:
        """Update the parameters once from the gradient buffer.

        The gradients are those of a mean over all tokens. They are divided by `counted`, the share
        of the tokens that count in the loss (one element; None: all).

        Returns the gradient norm over the whole model before clipping, one element. It is not
        finite after an overflow, which updates nothing.
        """
        self.all_reduce_replicated_grads()
        overflow, factor = None, None
        if self.ddp.grad_buffer.dtype != torch.float32:
            with timers("optimizer-copy-to-main-grad"):
                self.main_grads = self.main_params.new_empty(self.owned)
                self.ddp.copy_owned(self.ddp.grad_buffer, out=self.main_grads)
        if self.scaler is not None:
            with timers("optimizer-unscale-and-check-inf"):
                overflow, factor = self._overflow(), 1 / self.scaler.scale
        if counted is not None:
            factor = 1 / counted if factor is None else factor / counted
        with timers("optimizer-clip-main-grad"):
            norm = self._unscale_and_clip(factor)
        self._update(lr, overflow)
        if self.main_params is not None or self.ddp.shard_groups:
            with timers("optimizer-copy-main-to-model-params"):
                self._copy_main_params_to_model_params()
        if overflow is not None:
            self.scaler.update(overflow)
        return norm

    def _unscale_and_clip(self, factor: torch.Tensor | None) -> torch.Tensor:
        """Multiply the gradients by `factor` (one element) and clip them; return their norm."""
        norm = self.model_norm(self.grads_of(part) for part in self.ranges if part.counted)
        if factor is not None:
            norm = norm * factor
        if self.clip > 0:
            # Tensor arithmetic: whether to clip is decided without reading the norm.
            clip = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            factor = clip if factor is None else factor * clip
        if factor is not None:
            for part in self.ranges:
                self.grads_of(part).mul_(factor)
        return norm

    def _update(self, lr: float | torch.Tensor, overflow: torch.Tensor | None) -> None:
        if not self.has_values:
            overflow = None  # tensors without values do not overflow
        # The kernel reads a number as a double, so it keeps every digit.
        lr = lr.float() if isinstance(lr, torch.Tensor) else torch.tensor(lr, dtype=torch.float64)
        scalars = {"steps": self.steps + 1, "lr": lr,
                   "skip": None if overflow is None else overflow.float()}

        def adam(part: BufferRange, weights: torch.Tensor, grads: torch.Tensor,
                 moments: dict[str, torch.Tensor], scalars: dict[str, torch.Tensor | None]) -> None:
            ops.adamw_(weights, grads, *(moments[name][part.shard] for name in MOMENTS), **scalars,
                       **self.adam, weight_decay=self.weight_decay * part.group.has_weight_decay)

        if self.host is not None:
            self.host.start(self.grads_of, self.param_buffer, scalars)
        for part in self.on_device:
            adam(part, self.param_buffer[part.params] if self.main_params is None
                 else self.main_params[part.shard], self.grads_of(part), self.moments, scalars)
        if self.host is not None:
            self.host.finish(self.param_buffer, adam)
        self.advanced = 1 if overflow is None else (~overflow).long()
        self.steps += self.advanced

    def _copy_main_params_to_model_params(self) -> None:
        """Round the master weights to the model's dtype, and all-gather the other shards."""
        if self.main_params is not None:
            for part in self.on_device:
                self.param_buffer[part.params] = self.main_params[part.shard]
        self.ddp.gather_params(self.param_buffer)

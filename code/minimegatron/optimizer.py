"""Adam with decoupled weight decay, clipping by the global norm, and the learning rate."""

from __future__ import annotations

import math

import torch
from torch import nn

from minimegatron import ops
from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.gradients import Gradients
from minimegatron.timers import Timers


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over one rank's part of the model; biases and
    norms are not decayed.

    Weights, gradients and both moments are flat fp32 buffers in one order, decayed parameters
    first, so an update is two calls; the stage's parameters become views of `weights`. Those that
    every tensor-parallel rank copies lie together in the middle (see `place`).
    """

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        config, self.grid = ctx.config, ctx.grid
        self.clip, self.fused = config.clip_grad, ctx.device.fused_adam
        self.adam = {"beta1": config.adam_beta1, "beta2": config.adam_beta2,
                     "eps": config.adam_eps}
        self.named = sorted(model.named_parameters(), key=lambda named: place(named[1]))
        self.gradients = Gradients([p for _, p in self.named])
        decayed = sum(p.numel() for _, p in self.named if p.dim() > 1)
        self.parts = ((slice(0, decayed), config.weight_decay), (slice(decayed, None), 0.0))
        self.copies, self.counted = self._count_once()
        self.sum_copies = config.sequence_parallel
        self.weights = torch.empty_like(self.gradients.flat)
        for parameter, view in zip(self.gradients.parameters, self._views(self.weights).values(),
                                   strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self.moments = {name: torch.zeros_like(self.weights) for name in ("exp_avg", "exp_avg_sq")}
        self.updates = 0
        # The fused kernel reads the count where the weights are, the plain one on the host.
        self.steps = torch.zeros((), device=self.weights.device if self.fused else "cpu")

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """`flat`, cut into the parameters' shapes, by name."""
        sizes = [p.numel() for _, p in self.named]
        return {name: piece.view_as(p)
                for (name, p), piece in zip(self.named, flat.split(sizes), strict=True)}

    def _count_once(self) -> tuple[slice, list[slice]]:
        """(the copies' place; the places that this rank answers for in sums over the model)."""
        sizes = [0, 0, 0, 0, 0]
        for _, parameter in self.named:
            sizes[place(parameter)] += parameter.numel()
        tied = sizes[0]
        start = tied + sizes[1]
        end = start + sizes[2] + sizes[3]
        if self.grid.tp.index == 0:
            counted = [slice(tied, None)]
        else:
            counted = [slice(tied, start), slice(end, None)]
        return slice(start, end), counted

    def complete_copies(self) -> None:
        """Under sequence parallelism a copy saw only its rank's part of the sequence, so its
        gradient is an addend of the whole one: sum them (Korthikanti et al. 2022, 4.2.2)."""
        if self.sum_copies:
            self.grid.tp.all_reduce(self.gradients.flat[self.copies])

    def model_norm(self, flat: torch.Tensor) -> torch.Tensor:
        """Euclidean norm over the whole model of a buffer in the optimizer's order; every rank of
        the model-parallel group must call it. Returns one element, the same on all of them."""
        if self.grid.model.size == 1:
            return ops.norm(flat)
        norms = torch.stack([ops.norm(flat[part]) for part in self.counted])
        squares = norms.square().sum()
        self.grid.model.all_reduce(squares)
        return squares.sqrt()

    def num_zeros(self) -> torch.Tensor:
        """Zeros in the whole model's gradient (int64, one element); collective as model_norm."""
        flat = self.gradients.flat
        zeros = torch.stack([(flat[part] == 0).sum() for part in self.counted]).sum()
        self.grid.model.all_reduce(zeros)
        return zeros

    def step(self, lr: float, timers: Timers) -> torch.Tensor:
        """One update from the gradients' buffer. Returns their norm before clipping, over the
        whole model."""
        flat = self.gradients.flat
        self.complete_copies()
        with timers("optimizer-clip-main-grad"):
            norm = self.model_norm(flat)
            if self.clip > 0:
                # Tensor arithmetic: whether to clip is decided without reading the norm.
                flat.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.updates += 1
        self.steps += 1
        for part, weight_decay in self.parts:
            ops.adamw(self.weights[part], flat[part], self.moments["exp_avg"][part],
                      self.moments["exp_avg_sq"][part], self.steps, lr=lr,
                      weight_decay=weight_decay, fused=self.fused, **self.adam)
        return norm

    def state_dict(self) -> dict:
        return {"step": self.updates,
                **{name: self._views(flat) for name, flat in self.moments.items()}}

    def load_state_dict(self, saved: dict) -> None:
        self.updates = saved["step"]
        self.steps.fill_(self.updates)
        for name, flat in self.moments.items():
            for key, view in self._views(flat).items():
                view.copy_(saved[name][key])


def place(parameter: nn.Parameter) -> int:
    """Where the flat buffers hold it: 0 a tied copy, whose first holder counts it; 1 and 2 the
    other decayed weights, divided and copied; 3 and 4 biases and norms, copied and divided."""
    if getattr(parameter, "is_tied_copy", False):
        return 0
    if parameter.dim() > 1:
        return 1 if parameter.split is not None else 2
    return 3 if parameter.split is None else 4


class LearningRate:
    """Warm-up and decay, counted in samples.

    The first step runs at lr(0), which is 0 under a warm-up; the log shows the value after the
    step, that is lr(batch).
    """

    def __init__(self, config: Config) -> None:
        self.settings = {
            "learning rate": config.lr, "minimum learning rate": config.min_lr,
            "warmup iterations": config.lr_warmup_samples,
            "total number of iterations": config.lr_decay_samples,
            "decay style": config.lr_decay_style,
        }
        self.override = config.override_lr_scheduler
        self.use_saved = config.use_checkpoint_lr_scheduler
        self.samples = 0

    def value(self) -> float:
        """The learning rate after `samples` samples."""
        peak, lowest, warmup, decay, style = self.settings.values()
        n = self.samples
        if warmup > 0 and n <= warmup:
            return peak * n / warmup
        if style == "constant":
            return peak
        if n > decay:
            return lowest
        ratio = (n - warmup) / (decay - warmup)
        left = 1 - ratio if style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)
        return lowest + left * (peak - lowest)

    def state_dict(self) -> dict:
        return {**self.settings, "num_steps": self.samples}

    def load_state_dict(self, saved: dict) -> None:
        """Resume; raises UserError when the saved schedule is another one and no flag decides."""
        for name, value in self.settings.items():
            if self.use_saved:
                self.settings[name] = saved[name]
            elif not self.override and saved[name] != value:
                # The missing blank is upstream's.
                raise UserError(
                    f"AnnealingLR: class input value {value} and checkpointvalue {saved[name]} "
                    f"for {name} do not match; --override-lr-scheduler takes the command line's, "
                    "--use-checkpoint-lr-scheduler the checkpoint's")
        self.samples = saved["num_steps"]

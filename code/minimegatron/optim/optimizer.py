"""Adam with decoupled weight decay on fp32 main weights, and clipping by the global norm.

Weights, gradients and moments are flat buffers in one order, decayed parameters first. Those that
every tensor-parallel rank copies lie together in the middle (see `place`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.dtypes import params_dtype
from minimegatron.errors import UserError
from minimegatron.logging.timers import Timers
from minimegatron.model import ops
from minimegatron.optim.loss_scaler import LossScaler
from minimegatron.parallel.ddp import Gradients

MOMENTS = ("exp_avg", "exp_avg_sq")
MAIN = "fp32_from_fp16_params"  # Megatron's name, also under --bf16
DIVIDED = (*MOMENTS, MAIN)  # what the distributed optimizer divides


@dataclass(frozen=True)
class Run:
    """Elements that this rank updates alike. flat: where they are in the stage's buffers; own:
    where in those that hold what this rank owns; counted: whether it answers for them in sums."""

    flat: slice
    own: slice
    decayed: bool
    counted: bool


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over one rank's part of the model; biases and
    norms are not decayed.

    The stage's parameters become views of `weights`. In fp32 these are also the main weights; else
    `main` holds them. Moments, `main` and `main_gradient` cover only what this rank owns: with
    --use-distributed-optimizer its part (see data_parallel.py).
    """

    def __init__(self, ctx: Context, model: nn.Module) -> None:
        config, self.grid = ctx.config, ctx.grid
        self.clip, self.fused = config.clip_grad, ctx.device.fused_adam
        self.weight_decay = config.weight_decay
        self.adam = {"beta1": config.adam_beta1, "beta2": config.adam_beta2,
                     "eps": config.adam_eps}
        self.named = sorted(model.named_parameters(), key=lambda named: place(named[1]))
        self.gradients = Gradients(ctx, [p for _, p in self.named])
        self.buckets, flat = self.gradients.buckets, self.gradients.flat
        self.weights = torch.zeros_like(flat, dtype=params_dtype(config))
        for parameter, view in zip(self.gradients.parameters, self._views(self.weights).values(),
                                   strict=True):
            view.copy_(parameter.data)
            parameter.data = view
        self.copies, self.runs = self._cut()
        self.sum_copies = config.sequence_parallel
        # Who holds different elements: sums over the model go through these groups.
        self.holders = [self.grid.model, *([self.grid.dp] if self.buckets.sharded else [])]
        owned = sum(part.stop - part.start for part in self.buckets.owned)
        like = {"dtype": torch.float32, "device": flat.device}
        self.moments = {name: torch.zeros(owned, **like) for name in MOMENTS}
        half = self.weights.dtype != torch.float32
        self.main = torch.empty(owned, **like) if half else None
        self.main_gradient = torch.empty(owned, **like) if flat.dtype != torch.float32 else None
        self.take_weights()
        self.scaler = LossScaler(ctx) if config.fp16 else None
        # How many updates the last step was: 1, or with a loss scale a tensor, 0 after an overflow.
        self.advanced: int | torch.Tensor = 1
        # The fused kernel reads the count where the weights are, the plain one on the host.
        self.steps = torch.zeros((), device=self.weights.device if self.fused else "cpu")

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """`flat`, cut into the parameters' shapes, by name."""
        sizes = [p.numel() for _, p in self.named]
        pieces = flat[:sum(sizes)].split(sizes)
        return {name: piece.view_as(p)
                for (name, p), piece in zip(self.named, pieces, strict=True)}

    def _cut(self) -> tuple[slice, list[Run]]:
        """(the copies' place; the runs of what this rank owns)."""
        ends, first = [0, 0, 0, 0, 0], self.grid.tp.index == 0
        for _, parameter in self.named:
            for after in range(place(parameter), 5):
                ends[after] += parameter.numel()
        kinds = ((True, False), (True, True), (True, first), (False, first), (False, True))
        runs, own = [], 0
        for part in self.buckets.owned:
            for start, end, (decayed, counted) in zip([0, *ends[:-1]], ends, kinds, strict=True):
                start, end = max(start, part.start), min(end, part.stop)
                if start < end:
                    at = own + start - part.start
                    runs.append(Run(slice(start, end), slice(at, at + end - start),
                                    decayed, counted))
            own += part.stop - part.start
        return slice(ends[1], ends[3]), runs

    def take_weights(self) -> None:
        """The main weights start from the model's, as rounded as these are."""
        if self.main is not None:
            self._own(self.weights, into=self.main)

    def _own(self, flat: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        """Copy what this rank owns of a flat buffer."""
        start = 0
        for part in self.buckets.owned:
            end = start + part.stop - part.start
            into[start:end] = flat[part]
            start = end
        return into

    def _whole(self, own: torch.Tensor) -> torch.Tensor:
        """A flat buffer made of what every replica owns; all of them must call it."""
        if not self.buckets.sharded:
            return own
        flat, start = own.new_zeros(self.buckets.total), 0
        for part in self.buckets.owned:
            end = start + part.stop - part.start
            flat[part] = own[start:end]
            start = end
        self.buckets.gather(flat)
        return flat

    def complete_copies(self) -> None:
        """Under sequence parallelism a copy saw only its rank's part of the sequence, so its
        gradient is an addend of the whole one: sum them (Korthikanti et al. 2022, 4.2.2)."""
        if self.sum_copies:
            self.grid.tp.all_reduce(self.gradients.flat[self.copies])

    def _norm(self, pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        norms = [ops.norm(piece) for piece in pieces]
        # A rank may own nothing that counts.
        none = torch.zeros((), device=self.weights.device)
        norm = torch.linalg.vector_norm(torch.stack([none, *norms]))
        if all(group.size == 1 for group in self.holders):
            return norm
        squares = norm.square()
        for group in self.holders:
            group.all_reduce(squares)
        return squares.sqrt()

    def model_norm(self, flat: torch.Tensor) -> torch.Tensor:
        """Euclidean norm over the whole model of a flat buffer; every rank of the model must call
        it. Returns one element (fp32), the same on all of them."""
        return self._norm(flat[run.flat] for run in self.runs if run.counted)

    def num_zeros(self) -> torch.Tensor:
        """Zeros in the whole model's gradient (int64, one element); collective as model_norm."""
        flat = self.gradients.flat
        zeros = flat.new_zeros((), dtype=torch.int64)
        for run in self.runs:
            if run.counted:
                zeros += (flat[run.flat] == 0).sum()
        for group in self.holders:
            group.all_reduce(zeros)
        return zeros

    def _overflow(self) -> torch.Tensor:
        """Bool, one element: whether a gradient of any rank of the model is not finite."""
        flat = self.gradients.flat
        largest = [torch.linalg.vector_norm(flat[run.flat], ord=float("inf")) for run in self.runs]
        found = (~torch.stack([flat.new_zeros(()), *largest]).isfinite()).any().float()
        for group in self.holders:
            group.all_reduce(found, dist.ReduceOp.MAX)
        return found > 0

    def _gradient(self, run: Run) -> torch.Tensor:
        if self.main_gradient is None:
            return self.gradients.flat[run.flat]
        return self.main_gradient[run.own]

    def step(self, lr: float | torch.Tensor, timers: Timers) -> torch.Tensor:
        """One update from the gradients' buffer. Returns their norm before clipping, over the
        whole model; not finite where they overflowed and nothing was updated."""
        self.complete_copies()
        overflow, factor = None, None
        if self.main_gradient is not None:
            with timers("optimizer-copy-to-main-grad"):
                self._own(self.gradients.flat, into=self.main_gradient)
        if self.scaler is not None:
            with timers("optimizer-unscale-and-check-inf"):
                overflow, factor = self._overflow(), 1 / self.scaler.scale
        with timers("optimizer-clip-main-grad"):
            norm = self._norm(self._gradient(run) for run in self.runs if run.counted)
            if factor is not None:
                norm = norm * factor
            if self.clip > 0:
                # Tensor arithmetic: whether to clip is decided without reading the norm.
                clip = (self.clip / (norm + 1e-6)).clamp(max=1.0)
                factor = clip if factor is None else factor * clip
            if factor is not None:
                for run in self.runs:
                    self._gradient(run).mul_(factor)
        self._update(lr, overflow)
        if self.main is not None or self.buckets.sharded:
            with timers("optimizer-copy-main-to-model-params"):
                self._give_weights()
        if overflow is not None:
            self.scaler.update(overflow)
        return norm

    def _update(self, lr: float | torch.Tensor, overflow: torch.Tensor | None) -> None:
        if not self.fused:
            overflow = None  # tensors without values do not overflow
        skip = None if overflow is None else overflow.float()
        lr = lr.float() if isinstance(lr, torch.Tensor) else lr
        for run in self.runs:
            main = self.weights[run.flat] if self.main is None else self.main[run.own]
            ops.adamw(main, self._gradient(run), *(flat[run.own] for flat in self.moments.values()),
                      self.steps + 1, lr=lr, fused=self.fused, skip=skip,
                      weight_decay=self.weight_decay if run.decayed else 0.0, **self.adam)
        self.advanced = 1 if overflow is None else (~overflow).long()
        self.steps += self.advanced

    def _give_weights(self) -> None:
        """Round the main weights to the model's, and get the other replicas' parts."""
        if self.main is not None:
            for run in self.runs:
                self.weights[run.flat] = self.main[run.own]
        self.buckets.gather(self.weights)

    def state_dict(self) -> dict:
        """Whole, not sharded; every replica must call it."""
        state = {"step": self.steps,
                 **{name: self._views(self._whole(own)) for name, own in self.moments.items()}}
        if self.main is not None:
            state[MAIN] = self._views(self._whole(self.main))
        if self.scaler is not None:
            state["grad_scaler"] = self.scaler.state_dict()
        return state

    def load_state_dict(self, saved: dict) -> None:
        """Raises UserError for a state of another precision."""
        for part, wanted in ((MAIN, self.main), ("grad_scaler", self.scaler)):
            if (part in saved) != (wanted is not None):
                raise UserError(
                    f"the checkpoint's optimizer has {'a' if part in saved else 'no'} {part}: it "
                    "was saved in another precision; nearest: the --fp16 or --bf16 of that run, or "
                    "--no-load-optim")
        self.steps.copy_(torch.as_tensor(saved["step"]))
        parts = [*self.moments.items(), *([(MAIN, self.main)] if self.main is not None else [])]
        for name, own in parts:
            flat = own.new_zeros(self.buckets.total)
            for key, view in self._views(flat).items():
                view.copy_(saved[name][key])
            self._own(flat, into=own)
        if self.scaler is not None:
            self.scaler.load_state_dict(saved["grad_scaler"])


def place(parameter: nn.Parameter) -> int:
    """Where the flat buffers hold it: 0 a tied copy, whose first holder counts it; 1 and 2 the
    other decayed weights, divided and copied; 3 and 4 biases and norms, copied and divided."""
    if getattr(parameter, "is_tied_copy", False):
        return 0
    if parameter.dim() > 1:
        return 1 if parameter.split is not None else 2
    return 3 if parameter.split is None else 4

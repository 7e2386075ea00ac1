"""FP8 state: context managers, amax histories, cached weights, and activation checkpointing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint

from minite.functional import QuantizedPair, Quantizer, Quantizers
from minite.quantize import Quantized, amax_of, quantize_tensor, update_history
from minite.recipes import DelayedScaling, Recipe

FORWARD, BACKWARD = "fwd", "bwd"
ROLES = {FORWARD: ("input", "weight"), BACKWARD: ("grad",)}  # whose scales are updated together


@dataclass
class AutocastContext:
    """The arguments of an autocast block."""

    enabled: bool = False
    calibrating: bool = False
    recipe: Recipe = field(default_factory=DelayedScaling)
    group: Any = None


@dataclass(eq=False)
class Scaling:
    """Amax history and scales of a module's tensors in one direction, under delayed scaling.

    Attributes:
        direction: FORWARD or BACKWARD.
        amax_history: [amax_history_len, tensors]. Row 0 is the current step, and rows 1, 2, ...
            are the earlier ones, oldest first.
        scale: current scales, [tensors]; each update replaces the tensor, never writes to it.
        context: that of the latest forward pass.
    """

    direction: str
    amax_history: Tensor
    scale: Tensor
    context: AutocastContext = field(default_factory=AutocastContext)

    def resize(self, steps: int) -> None:
        """Change the length of the history, keeping the newest steps."""
        if steps == len(self.amax_history):
            return
        newest = self.amax_history[1:].flip(0)[:steps - 1].flip(0)
        missing = self.scale.new_zeros(steps - 1 - len(newest), len(self.scale))
        self.amax_history = torch.cat([self.amax_history[:1], missing, newest])


_stack: list[AutocastContext] = [AutocastContext()]
_tapes: list[Iterator | list] = []  # per checkpoint, the scales to record or to replay
_pending: dict[str, dict[Scaling, None]] = {FORWARD: {}, BACKWARD: {}}  # used as ordered sets


def current() -> AutocastContext:
    """Return the innermost context; outside of autocast, a disabled one."""
    return _stack[-1]


@contextlib.contextmanager
def autocast(enabled: bool = True, calibrating: bool = False, recipe: Recipe | None = None,
             amax_reduction_group: Any = None) -> Iterator[None]:
    """Run the layers inside the block in FP8.

    Args:
        enabled: whether GEMMs run in FP8.
        calibrating: whether to record amax and set scales even if GEMMs do not run in FP8.
        recipe: the recipe; None for DelayedScaling().
        amax_reduction_group: the process group whose ranks share scales; None for all ranks.
    """
    _stack.append(
        AutocastContext(enabled, calibrating, recipe or DelayedScaling(), amax_reduction_group))
    try:
        yield
    finally:
        _stack.pop()
    if len(_stack) == 1:
        update_scales(FORWARD)


def fp8_autocast(enabled: bool = True, calibrating: bool = False,
                 fp8_recipe: Recipe | None = None, fp8_group: Any = None
                 ) -> contextlib.AbstractContextManager[None]:
    """Call `autocast` by Transformer Engine's older name and argument names."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


def update_scales(direction: str) -> None:
    """End a step of delayed scaling: reduce amax over the group, then set the scales.

    This takes one all-reduce (max) per group. All ranks of a group must have run the same layers.

    Args:
        direction: FORWARD or BACKWARD.
    """
    waiting, _pending[direction] = list(_pending[direction]), {}
    rows_by_group: dict[Any, list[Tensor]] = {}
    for scaling in waiting:
        if scaling.context.recipe.reduce_amax and dist.is_initialized():
            rows_by_group.setdefault(scaling.context.group, []).append(scaling.amax_history[0])
    for group, rows in rows_by_group.items():
        amax = torch.cat(rows)
        dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
        for row, part in zip(rows, amax.split([len(row) for row in rows]), strict=True):
            row.copy_(part)
    for scaling in waiting:
        recipe = scaling.context.recipe
        scaling.amax_history, scaling.scale = update_history(
            scaling.amax_history, scaling.scale, recipe.dtype(ROLES[direction][0]), recipe.margin,
            recipe.amax_compute_algo)


class _Delayed(Quantizer):
    """Quantizes with the scale of earlier steps, and records this step's amax.

    Args:
        scaling: of the tensor's module and direction.
        role: as in Quantizer.
        gemm: number of the GEMM in the module.
        scale: the forward pass's scales; None for those at the time of the call.
        records_amax: whether a call records the amax.
    """

    def __init__(self, scaling: Scaling, role: str, gemm: int, scale: Tensor | None,
                 records_amax: bool) -> None:
        super().__init__(scaling.context.recipe, role)
        roles = ROLES[scaling.direction]
        self.scaling, self.column = scaling, gemm * len(roles) + roles.index(role)
        self.scale, self.records_amax = scale, records_amax

    def __call__(self, x: Tensor) -> Quantized:
        if self.records_amax:
            self.observe(x)
        scale = self.scaling.scale if self.scale is None else self.scale
        return quantize_tensor(x, scale[self.column], self.dtype)

    def observe(self, x: Tensor) -> None:
        """Raise the current step's amax to this tensor's, and schedule the update."""
        row = self.scaling.amax_history[0]
        row[self.column] = torch.maximum(row[self.column], amax_of(x))
        _pending[self.scaling.direction][self.scaling] = None
        if self.role == "grad":  # the forward pass's update follows at the end of autocast
            torch.autograd.Variable._execution_engine.queue_callback(
                lambda: update_scales(BACKWARD))


class LinearState:
    """The FP8 state of a module's GEMMs: two amax histories, and the weights in FP8.

    Args:
        gemms: the number of linear layers in the module.
    """

    def __init__(self, gemms: int = 1) -> None:
        self.gemms = gemms
        self.scalings: dict[str, Scaling] = {}
        self.cached: dict[int, tuple[Recipe, QuantizedPair]] = {}

    def quantizers(self, context: AutocastContext, gemm: int = 0,
                   device: torch.device | str = "cpu") -> Quantizers:
        """Return the quantizers of one forward pass of a GEMM and of its backward pass."""
        if not isinstance(context.recipe, DelayedScaling):
            return Quantizers.of(context.recipe)
        forward, backward = (self._scaling(direction, context, device) for direction in ROLES)
        scale, records_amax = forward.scale, torch.is_grad_enabled()
        for tape in _tapes:  # the outermost first, because checkpoints may be nested
            if isinstance(tape, list):
                tape.append(scale)
            else:
                scale, records_amax = next(tape), False
        return Quantizers(_Delayed(forward, "input", gemm, scale, records_amax),
                          _Delayed(forward, "weight", gemm, scale, records_amax),
                          _Delayed(backward, "grad", gemm, None, True))

    def _scaling(self, direction: str, context: AutocastContext, device: torch.device | str
                 ) -> Scaling:
        if direction not in self.scalings:
            scale = torch.ones(self.gemms * len(ROLES[direction]), device=device)
            self.scalings[direction] = Scaling(direction, torch.zeros_like(scale)[None], scale)
        scaling = self.scalings[direction]
        scaling.context = context
        scaling.resize(context.recipe.amax_history_len)
        return scaling

    def weights(self, quantizer: Quantizer, weight: Tensor, first: bool | None, gemm: int = 0
                ) -> QuantizedPair:
        """Return the weight in FP8, quantized once per step.

        Args:
            quantizer: the weight's quantizer.
            weight: the weight, [n, k].
            first: whether this is a step's first micro-batch; None quantizes every time.
            gemm: number of the GEMM in the module.
        """
        recipe, pair = self.cached.pop(gemm, (None, None))
        if first is not False or recipe != quantizer.recipe:
            pair = quantizer.pair(weight.detach())
        if first is not None:
            self.cached[gemm] = quantizer.recipe, pair
        return pair

    def state_dict(self) -> dict[str, Tensor]:
        """Return amax histories and scales; empty without delayed scaling."""
        return {f"{name}_{direction}": getattr(scaling, name).clone()
                for direction, scaling in self.scalings.items()
                for name in ("amax_history", "scale")}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors that `state_dict` returned."""
        self.scalings = {direction: Scaling(direction, state[f"amax_history_{direction}"].clone(),
                                            state[f"scale_{direction}"].clone())
                         for direction in ROLES if f"scale_{direction}" in state}
        self.cached.clear()


@contextlib.contextmanager
def _checkpointed(tape: Iterator | list, *contexts: AutocastContext) -> Iterator[None]:
    _tapes.append(tape)
    _stack.extend(contexts)
    try:
        yield
    finally:
        del _stack[len(_stack) - len(contexts):]
        _tapes.pop()


def checkpoint(function: Callable, *args: Any, use_reentrant: bool = False, **kwargs: Any) -> Any:
    """Call a function, discard its activations, and recompute them in the backward pass.

    The recomputation uses the forward pass's recipe and scales, and records no amax. It is always
    torch's non-reentrant variant; `use_reentrant` is accepted for compatibility.
    """
    scales: list[Tensor] = []
    contexts = _checkpointed(scales), _checkpointed(iter(scales), current())
    return torch_checkpoint.checkpoint(function, *args, use_reentrant=False,
                                       context_fn=lambda: contexts, **kwargs)

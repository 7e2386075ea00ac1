"""FP8 state: the autocast context, amax histories, cached weights, and recomputation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from minite.functional import QuantizedPair, Quantizer, Quantizers
from minite.quantize import Quantized, amax_of, quantize_tensor, update_history
from minite.recipes import DelayedScaling, Recipe

FORWARD, BACKWARD = ("input", "weight"), ("grad",)  # roles whose scales are updated together


@dataclass
class AutocastContext:
    """The arguments of an autocast block."""

    enabled: bool = False
    calibrating: bool = False
    recipe: Recipe = field(default_factory=DelayedScaling)
    group: Any = None


@dataclass
class Scaling:
    """The amax history and the scales of a group of tensors under delayed scaling.

    Attributes:
        roles: the tensors' roles, FORWARD or BACKWARD.
        history: amax per step and tensor, [amax_history_len, tensors]; row 0 is the current step.
        scale: current scales, [tensors]; each update replaces the tensor, never writes to it.
    """

    roles: tuple[str, ...]
    history: Tensor
    scale: Tensor

    def resize(self, steps: int) -> None:
        """Change the length of the history, keeping the newest steps.

        Row 0 is the current step, and rows 1, 2, ... are the earlier ones, oldest first.
        """
        if steps == len(self.history):
            return
        newest = self.history[1:][-(steps - 1):] if steps > 1 else self.history[:0]
        resized = self.history.new_zeros(steps, self.history.shape[1])
        resized[0] = self.history[0]
        if len(newest):
            resized[-len(newest):] = newest
        self.history = resized


_stack: list[AutocastContext] = [AutocastContext()]
_tapes: list[Iterator | list] = []  # per checkpoint, the scales to record or to replay
_pending: dict[tuple[str, ...], dict[int, tuple[Scaling, AutocastContext]]] = {FORWARD: {},
                                                                               BACKWARD: {}}
_next_is_first = [False]  # whether the next layer is the first one, whose backward pass is last


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
    if len(_stack) == 1:
        _next_is_first[0] = True
    _stack.append(
        AutocastContext(enabled, calibrating, recipe or DelayedScaling(), amax_reduction_group))
    try:
        yield
    finally:
        context = _stack.pop()
    training = context.enabled and torch.is_grad_enabled()
    if len(_stack) == 1 and (context.calibrating or training):
        update_scales(FORWARD)


def fp8_autocast(enabled: bool = True, calibrating: bool = False,
                 fp8_recipe: Recipe | None = None, fp8_group: Any = None
                 ) -> contextlib.AbstractContextManager[None]:
    """Call `autocast` by Transformer Engine's older name and argument names."""
    return autocast(enabled, calibrating, fp8_recipe, fp8_group)


def update_scales(roles: tuple[str, ...]) -> None:
    """End a step of delayed scaling: reduce amax over the group, then set the scales.

    This takes one all-reduce (max) per group. All ranks of a group must have run the same layers.

    Args:
        roles: FORWARD or BACKWARD.
    """
    waiting = list(_pending[roles].values())
    _pending[roles].clear()
    groups: dict[Any, list[Scaling]] = {}
    for scaling, context in waiting:
        if context.recipe.reduce_amax and dist.is_initialized():
            groups.setdefault(context.group, []).append(scaling)
    for group, scalings in groups.items():
        if dist.get_world_size(group) > 1:
            amax = torch.cat([scaling.history[0] for scaling in scalings])
            dist.all_reduce(amax, dist.ReduceOp.MAX, group=group)
            for scaling, part in zip(
                    scalings, amax.split([len(s.scale) for s in scalings]), strict=True):
                scaling.history[0] = part
    for scaling, context in waiting:
        recipe = context.recipe
        scaling.history, scaling.scale = update_history(
            scaling.history, scaling.scale, recipe.dtype(scaling.roles[0]), recipe.margin,
            recipe.amax_compute_algo)


class _Delayed(Quantizer):
    """Quantizes with the scale of earlier steps, and records this step's amax."""

    def __init__(self, context: AutocastContext, role: str, scaling: Scaling, scale: Tensor | None,
                 records_amax: bool) -> None:
        super().__init__(context.recipe, role)
        self.context, self.scaling, self.scale = context, scaling, scale
        self.records_amax = records_amax
        self.column = scaling.roles.index(role)

    def __call__(self, x: Tensor) -> Quantized:
        if self.records_amax:
            self.observe(x)
        scale = self.scaling.scale if self.scale is None else self.scale
        return quantize_tensor(x, scale[self.column], self.dtype)

    def observe(self, x: Tensor) -> None:
        """Raise the current step's amax to this tensor's, and schedule the update."""
        row = self.scaling.history[0]
        row[self.column] = torch.maximum(row[self.column], amax_of(x))
        _pending[self.scaling.roles][id(self.scaling)] = self.scaling, self.context


class LinearState:
    """The FP8 state of one linear layer: two amax histories, and its weight in FP8."""

    def __init__(self) -> None:
        self.scalings: dict[tuple[str, ...], Scaling] = {}
        self.cached: tuple[Recipe, QuantizedPair] | None = None

    def quantizers(self, context: AutocastContext,
                   device: torch.device | str = "cpu") -> Quantizers:
        """Return the quantizers of one forward pass and of its backward pass."""
        if not isinstance(context.recipe, DelayedScaling):
            return Quantizers.of(context.recipe)
        forward, backward = (self._scaling(roles, context.recipe.amax_history_len, device)
                             for roles in (FORWARD, BACKWARD))
        scale, records_amax = forward.scale, True
        for tape in _tapes:  # the outermost first, because checkpoints may be nested
            if isinstance(tape, list):
                tape.append(scale)
            else:
                scale, records_amax = next(tape), False
        return Quantizers(_Delayed(context, "input", forward, scale, records_amax),
                          _Delayed(context, "weight", forward, scale, records_amax),
                          _Delayed(context, "grad", backward, None, True))

    def _scaling(self, roles: tuple[str, ...], steps: int, device: torch.device | str) -> Scaling:
        if roles not in self.scalings:
            self.scalings[roles] = Scaling(roles, torch.zeros(steps, len(roles), device=device),
                                           torch.ones(len(roles), device=device))
        self.scalings[roles].resize(steps)
        return self.scalings[roles]

    def weights(self, quantizer: Quantizer, weight: Tensor, first: bool | None) -> QuantizedPair:
        """Return the weight in FP8, quantized once per step.

        Args:
            quantizer: the weight's quantizer.
            weight: the weight, [n, k].
            first: whether this is a step's first micro-batch; None quantizes every time.
        """
        recipe = quantizer.recipe
        if first is False and self.cached is not None and self.cached[0] == recipe:
            return self.cached[1]
        pair = quantizer.pair(weight.detach())
        self.cached = None if first is None else (recipe, pair)
        return pair

    def state_dict(self) -> dict[str, Tensor]:
        """Return amax histories and scales; empty without delayed scaling."""
        return {f"{name}_{direction}": tensor.clone()
                for direction, roles in (("fwd", FORWARD), ("bwd", BACKWARD))
                if roles in self.scalings
                for name, tensor in (("amax_history", self.scalings[roles].history),
                                     ("scale", self.scalings[roles].scale))}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors that `state_dict` returned."""
        for direction, roles in (("fwd", FORWARD), ("bwd", BACKWARD)):
            if f"scale_{direction}" in state:
                self.scalings[roles] = Scaling(roles, state[f"amax_history_{direction}"].clone(),
                                               state[f"scale_{direction}"].clone())
        self.cached = None


def is_first_layer() -> bool:
    """Return True for the first layer of an outermost autocast: its backward pass runs last."""
    is_first, _next_is_first[0] = _next_is_first[0], False
    return is_first


def end_backward() -> None:
    """Update the gradients' scales; called at the end of the backward pass."""
    update_scales(BACKWARD)


@contextlib.contextmanager
def _checkpointed(tape: Iterator | list, *contexts: AutocastContext) -> Iterator[None]:
    _tapes.append(tape)
    _stack.extend(contexts)
    try:
        yield
    finally:
        del _stack[len(_stack) - len(contexts):]
        _tapes.pop()


def recomputation() -> tuple[contextlib.AbstractContextManager, contextlib.AbstractContextManager]:
    """Return the contexts of a checkpointed forward pass and of its recomputation.

    The recomputation uses the forward pass's scales and autocast context, and records no amax. This
    function is a `context_fn` of `torch.utils.checkpoint`.
    """
    scales: list[Tensor] = []
    return _checkpointed(scales), _checkpointed(iter(scales), current())


"""FP8 with one scale per tensor: the context, and the scales of all linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from virtualgpu.core.precisions import recipe_support
from virtualgpu.core.storages import active_card

from ..common.recipe import DelayedScaling, Float8CurrentScaling, Format, Recipe

run = torch.ops.virtualgpu
ROLES = 3  # input, weight, and gradient of a linear layer
HEIGHT, WIDTH = 8, 16  # what the sizes of matrices must be divisible by


class Scales:
    """Scales and histories of all linear layers, in one tensor each, as one kernel updates them.

    Attributes:
        recipe: the recipe of the innermost context; None outside of FP8.
        group: the ranks that share the largest magnitudes.
    """

    def __init__(self) -> None:
        self.recipe: Recipe | None = None
        self.group: dist.ProcessGroup | None = None
        self.count = 0
        self.scale = self.inverse = self.amax = self.history = self.most = None

    def register(self) -> int:
        """Return the first of a new linear layer's columns."""
        self.count += 1
        return ROLES * (self.count - 1)

    def allocate(self, device: torch.device) -> None:
        """Make room for all layers registered so far."""
        columns = ROLES * self.count
        if self.scale is not None and len(self.scale) >= columns:
            return
        old, self.scale = self.scale, torch.ones(columns, device=device)
        if old is not None:
            self.scale[:len(old)] = old
        self.inverse = self.scale.reciprocal()
        self.amax = torch.zeros(columns, device=device)
        length = getattr(self.recipe, "amax_history_len", 1)
        self.history = torch.zeros(length, columns, device=device)
        formats = self.formats()
        largest = [torch.finfo(formats[role]).max for role in range(ROLES)]
        self.most = torch.tensor(largest * self.count, device=device)

    def formats(self) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
        """Return the dtypes of input, weight, and gradient."""
        kind: Format = self.recipe.fp8_format
        forward, backward = kind.value
        return forward, forward, backward

    @torch.no_grad()
    def update(self) -> None:
        """Compute the scales of the next step from the largest magnitudes so far."""
        if self.amax is None or not isinstance(self.recipe, DelayedScaling):
            return
        if self.recipe.reduce_amax and dist.is_initialized() and dist.get_world_size(
                self.group) > 1:
            dist.all_reduce(self.amax, dist.ReduceOp.MAX, self.group)
        self.history = self.history.roll(-1, 0)
        self.history[-1] = self.amax
        last = self.recipe.amax_compute_algo == "most_recent"
        amax = self.history[-1] if last else self.history.amax(0)
        scale = self.most / amax / 2 ** self.recipe.margin
        self.scale = torch.where(amax > 0, scale, self.scale)
        self.inverse = self.scale.reciprocal()
        self.amax.zero_()


SCALES = Scales()


@contextmanager
def fp8_autocast(enabled: bool = True, calibrating: bool = False,
                 fp8_recipe: Recipe | None = None, fp8_group: dist.ProcessGroup | None = None,
                 **_) -> Iterator[None]:
    """Run the linear layers in this context in FP8.

    Args:
        enabled: whether to.
        calibrating: not needed, because statistics are not kept outside of FP8.
        fp8_recipe: the recipe; None: delayed scaling.
        fp8_group: ranks that share the largest magnitudes.
    """
    before = SCALES.recipe
    if enabled:
        recipe = fp8_recipe or DelayedScaling()
        if not isinstance(recipe, DelayedScaling | Float8CurrentScaling):
            raise ValueError(f"fp8_recipe={recipe!r}: virtualrun models DelayedScaling and "
                             "Float8CurrentScaling")
        reason = is_fp8_available()[1]
        if reason:
            raise AssertionError(reason)
        SCALES.group = fp8_group
    SCALES.recipe = recipe if enabled else None
    try:
        yield
    finally:
        if enabled and before is None:
            SCALES.update()
        SCALES.recipe = before


@contextmanager
def autocast(enabled: bool = True, calibrating: bool = False, recipe: Recipe | None = None,
             amax_reduction_group: dist.ProcessGroup | None = None, **_) -> Iterator[None]:
    """Run linear layers in FP8: fp8_autocast with the argument names of newer versions."""
    with fp8_autocast(enabled, calibrating, recipe, amax_reduction_group):
        yield


def is_fp8_available(return_reason: bool = True):
    """Return whether this GPU model runs FP8, and if not, why."""
    reason = recipe_support(active_card()).get("delayed") or ""
    return (not reason, reason) if return_reason else not reason


def is_bf16_available(return_reason: bool = False):
    """Return whether this GPU model runs bfloat16."""
    found = torch.cuda.get_device_capability()[0] >= 8
    return (found, "" if found else "bfloat16 needs Ampere or newer") if return_reason else found


class Fp8Linear(torch.autograd.Function):
    """y = x W^T + b, with one kernel per cast (with its transpose and its amax) and per GEMM."""

    @staticmethod
    def forward(ctx, x, weight, bias, column):
        check(x)
        check(weight)
        formats = SCALES.formats()
        given, given_t, given_inverse = cast(x, column, formats[0])
        rounded, rounded_t, weight_inverse = cast(weight, column + 1, formats[1])
        ctx.save_for_backward(given_t, rounded_t, given_inverse, weight_inverse)
        ctx.column, ctx.format, ctx.biased = column + 2, formats[2], bias is not None
        ctx.recipe = SCALES.recipe
        return torch._scaled_mm(given, rounded.t(), given_inverse, weight_inverse, bias,
                                out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx, grad):
        given_t, rounded_t, given_inverse, weight_inverse = ctx.saved_tensors
        outside, SCALES.recipe = SCALES.recipe, ctx.recipe
        above, above_t, inverse = cast(grad.contiguous(), ctx.column, ctx.format)
        SCALES.recipe = outside
        for_x = torch._scaled_mm(above, rounded_t.t(), inverse, weight_inverse,
                                 out_dtype=grad.dtype) if ctx.needs_input_grad[0] else None
        for_weight = torch._scaled_mm(above_t, given_t.t(), inverse, given_inverse,
                                      out_dtype=grad.dtype) if ctx.needs_input_grad[1] else None
        return for_x, for_weight, grad.sum(0) if ctx.biased else None, None


def cast(x: Tensor, column: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return x [m, k] in FP8, its transpose, and the reciprocal of its scale."""
    amax = SCALES.amax[column:column + 1]
    if isinstance(SCALES.recipe, Float8CurrentScaling):
        largest = x.abs().amax().float().clamp(min=1e-12)
        scale = torch.finfo(dtype).max / largest / 2 ** SCALES.recipe.margin
        rounded, transposed = run.cast_transpose(x, scale, amax, dtype)
        return rounded, transposed, scale.reciprocal()
    rounded, transposed = run.cast_transpose(x, SCALES.scale[column], amax, dtype)
    return rounded, transposed, SCALES.inverse[column].clone()


def check(x: Tensor) -> None:
    """Raise AssertionError, with Transformer Engine's words, for sizes that FP8 GEMMs refuse."""
    assert x.dim() == 2 and x.shape[0] % HEIGHT == 0 and x.shape[1] % WIDTH == 0, (
        "FP8 execution requires 2D input matrices with height divisible by 8 and width divisible "
        f"by 16, but got tensor with dims={list(x.shape)}")

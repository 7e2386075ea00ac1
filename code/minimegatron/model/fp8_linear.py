"""One linear layer's GEMMs in FP8, with the communication around them.

Only --fp8-format imports this file; fp8.py holds the state of all layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.model import fp8_ops, ops
from minimegatron.model.linear import matmul
from minimegatron.model.mappings import TensorParallel
from minite.functional import QuantizedPair, Quantizer
from minite.overlap import restore, save
from minite.quantize import BLOCK, MX_BLOCK, Quantized
from minite.recipes import DelayedScaling, Float8BlockScaling, MXFP8BlockScaling, Recipe

if TYPE_CHECKING:
    from minimegatron.grid import Group
    from minimegatron.model.linear import GradAccumulator

FORWARD, BACKWARD = ("input", "weight"), ("grad",)  # the roles whose amaxes a history holds


class History(nn.Module):
    """Amax histories and scales of one role's direction, for all linear layers of a model chunk.

    Attributes:
        amax: fp32 [steps, tensors]; row 0 is the current step.
        is_loaded: whether row 0 is of a checkpoint.
        scale: [tensors], used in the current step.
        scale_inv: its reciprocal, [tensors].
    """

    def __init__(self, ctx: Context, steps: int, tensors: int) -> None:
        super().__init__()
        self.is_loaded = False
        like = {"device": ctx.device.torch_device}
        self.register_buffer("amax", torch.zeros(steps, tensors, **like))
        self.register_buffer("scale", torch.ones(tensors, **like))
        self.register_buffer("scale_inv", torch.ones(tensors, **like), persistent=False)

    def _load_from_state_dict(self, state: dict, prefix: str, *rest: object) -> None:
        """Load a history of any length: keep its newest steps. Without one, start anew."""
        if f"{prefix}amax" not in state:
            return
        saved, steps = state[f"{prefix}amax"], len(self.amax)
        self.amax.zero_()
        self.amax[0], self.is_loaded = saved[0], True
        newest = saved[1:][-(steps - 1):] if steps > 1 else saved[:0]  # row 0, then the oldest
        self.amax[steps - len(newest):] = newest
        self.scale.copy_(state[f"{prefix}scale"])
        self.scale_inv.copy_(self.scale.reciprocal())


class Delayed(Quantizer):
    """Round with the scale of earlier steps, and record this step's amax."""

    def __init__(self, recipe: Recipe, role: str, history: History, number: int,
                 is_gathered: bool) -> None:
        """Create the quantizer of one tensor.

        Args:
            recipe: delayed scaling.
            role: as in Quantizer.
            history: of the tensors of this role.
            number: of the linear layer.
            is_gathered: whether it is a weight that is gathered in FP8.
        """
        super().__init__(recipe, role)
        roles = FORWARD if role in FORWARD else BACKWARD
        self.history, self.column = history, number * len(roles) + roles.index(role)
        self.is_gathered = is_gathered

    def __call__(self, x: torch.Tensor) -> Quantized:
        scale, scale_inv, amax = self.scaling()
        if not self.history.training or (self.is_gathered and self.history.is_loaded):
            amax = None  # a loaded history has the amax of the weight before it was rounded
        return Quantized(fp8_ops.fp8_cast(x, scale, amax, self.dtype), scale_inv)

    def scaling(self, amax: torch.Tensor | None = None
                ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the scale, its reciprocal, and where this step's amax belongs."""
        history, column = self.history, self.column
        return history.scale[column], history.scale_inv[column], history.amax[0, column]


class Current(Quantizer):
    """Round with the scale of the tensor's own amax, the largest on the ranks that share it."""

    def __init__(self, recipe: Recipe, role: str, group: Group | None) -> None:
        super().__init__(recipe, role)
        self.group = group

    def __call__(self, x: torch.Tensor) -> Quantized:
        amax = fp8_ops.fp8_amax(x)
        if self.group is not None:
            self.group.all_reduce(amax, dist.ReduceOp.MAX)
        scale, scale_inv, _ = self.scaling(amax)
        return Quantized(fp8_ops.fp8_cast(x, scale, None, self.dtype), scale_inv)

    def scaling(self, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Return the scale that fits an amax, its reciprocal, and nowhere to record the amax."""
        return *fp8_ops.fp8_scales(amax, self.dtype), None


class Blocks(Quantizer):
    """Round with one scale per block."""

    def __call__(self, x: torch.Tensor) -> Quantized:
        mx = isinstance(self.recipe, MXFP8BlockScaling)
        rows, columns = ((1, MX_BLOCK) if mx else
                         (BLOCK if self.role == "weight" else 1, BLOCK))
        return Quantized(*fp8_ops.fp8_blocks(x, self.dtype, rows, columns, mx), (rows, columns))


def multiply(a: Quantized, b: Quantized, dtype: torch.dtype, bias: torch.Tensor | None = None
             ) -> torch.Tensor:
    """Return a [m, k] times the transpose of b [n, k], plus a bias [n] or None."""
    a_block, b_block = a.block or (0, 0), b.block or (0, 0)
    return fp8_ops.fp8_gemm(a.data, a.scale_inv, b.data, b.scale_inv, a_block[0], b_block[0],
                            a_block[1], bias, dtype)


class Fp8TensorParallel(TensorParallel):
    """How one linear layer enters and leaves its tensor-parallel region, with GEMMs in FP8.

    Attributes:
        weights: this step's rounded weight and its transpose; None until they are needed.
    """

    def __init__(self, ctx: Context, recipe: Recipe, histories: nn.ModuleDict, number: int,
                 is_column: bool) -> None:
        """Create what a layer needs.

        Args:
            recipe: that of the flags.
            histories: of the model chunk; empty without delayed scaling.
            number: of the linear layer in the chunk.
            is_column: whether it is column-parallel, not row-parallel.
        """
        super().__init__(ctx)
        self.histories, self.is_column = histories, is_column
        self.is_sequence_parallel = ctx.config.sequence_parallel
        # Which of x and dy is this rank's part of the sequence.
        self.input_is_part = self.is_sequence_parallel and is_column
        self.grad_is_part = self.is_sequence_parallel and not is_column
        self.fp8_wgrad, self.gathers = ctx.config.fp8_wgrad, ctx.config.fp8_param_gather
        self.one_scale = not isinstance(recipe, Float8BlockScaling | MXFP8BlockScaling)
        # On all ranks the same: the input of a column-parallel layer, and its counterpart.
        whole = "" if self.is_sequence_parallel else "input" if is_column else "grad"
        self.input, self.weight, self.grad = (
            self._quantizer(recipe, role, number, role != whole)
            for role in ("input", "weight", "grad"))
        self.weights: QuantizedPair | None = None

    def _quantizer(self, recipe: Recipe, role: str, number: int, is_shared: bool) -> Quantizer:
        if isinstance(recipe, DelayedScaling):
            history = self.histories["fwd" if role in FORWARD else "bwd"]
            return Delayed(recipe, role, history, number, self.gathers and role == "weight")
        if self.one_scale:
            return Current(recipe, role, self.group if is_shared and self.group.size > 1 else None)
        return Blocks(recipe, role)

    def rounded(self, weight: torch.Tensor) -> QuantizedPair:
        """Return a weight [n, k] in FP8, and its transpose; in training, once per step."""
        if self.weights is not None:
            return self.weights
        pair = self.weight.pair(weight.detach())
        if self.histories.training:
            self.weights = pair
        return pair

    def quantize_input(self, x: torch.Tensor) -> tuple[Quantized, Quantized | torch.Tensor]:
        """Return the input in FP8 for y = x W^T, and what to save of it for dW = dy^T x.

        That is the transpose in FP8, or x in 16 bits with --no-fp8-wgrad. With sequence
        parallelism, a column-parallel layer saves this rank's rows only.

        Args:
            x: [m, in], or this rank's rows [m/t, in].
        """
        if not self.input_is_part:
            return self.input.pair(x) if self.fp8_wgrad else (self.input(x), x)
        if not self.one_scale:  # the transpose has other blocks, which reach over the ranks' rows
            return self.input(self.group.all_gather(x)), x
        rows = self.input(x)
        return self.all_gather(rows), rows if self.fp8_wgrad else x

    def restore_input(self, saved: Quantized | torch.Tensor) -> Quantized | torch.Tensor:
        """Return what dW = dy^T x needs of the input, from what quantize_input() saved."""
        if not self.input_is_part:
            return saved
        if isinstance(saved, Quantized):
            return self.all_gather(saved).t()
        whole = self.group.all_gather(saved)
        return self.input(whole.t()) if self.fp8_wgrad else whole

    def quantize_grad(self, dy: torch.Tensor) -> tuple[Quantized, Quantized | torch.Tensor]:
        """Return dy in FP8 for dx = dy W, and what dW = dy^T x needs of it.

        Args:
            dy: [m, out], or this rank's rows [m/t, out].
        """
        if self.grad_is_part and self.one_scale and self.fp8_wgrad:
            rows = self.all_gather(self.grad(dy))
            return rows, rows.t()
        if self.grad_is_part:
            dy = self.group.all_gather(dy)
        return self.grad.pair(dy) if self.fp8_wgrad else (self.grad(dy), dy)

    def all_gather(self, part: Quantized) -> Quantized:
        """All-gather rows that share one scale, as bytes: gloo has no float8."""
        whole = self.group.all_gather(part.data.view(torch.uint8))
        return Quantized(whole.view(part.data.dtype), part.scale_inv)

    def add_weight_grad(self, accumulator: GradAccumulator | None, grad: Quantized | torch.Tensor,
                        x: Quantized | torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Accumulate dy^T x, now or when a schedule asks for it; without an accumulator, return it.

        Args:
            accumulator: of the weight.
            grad: dy transposed in FP8, [out, m], or dy in 16 bits with --no-fp8-wgrad.
            x: the input transposed in FP8, [in, m], or in 16 bits, [m, in].
            dtype: of the product.
        """
        if not self.fp8_wgrad:
            if accumulator is None:
                return matmul(grad.t(), x)
            accumulator.add_product(grad, x)
        elif accumulator is None:
            return multiply(grad, x, dtype)
        else:
            accumulator.add_later(lambda: accumulator.add(multiply(grad, x, dtype)))
        return None

    def column_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor,
                               bias: torch.Tensor | None = None,
                               accumulator: GradAccumulator | None = None) -> torch.Tensor:
        return Fp8Linear.apply(x, weight, bias, accumulator, self)

    def row_parallel_linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None,
                            accumulator: GradAccumulator | None) -> torch.Tensor:
        inside = bias if self.group.size == 1 else None  # the sum would count it t times
        y = Fp8Linear.apply(x, weight, inside, accumulator, self)
        return y if bias is inside else ops.add_bias(y, bias)

    def leave(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum the ranks' partial results [s, b, h], in place; each keeps [s/t, b, h] with sequence
        parallelism."""
        if self.is_sequence_parallel:
            return self.group.reduce_scatter(partial)
        self.group.all_reduce(partial)
        return partial


class Fp8Linear(torch.autograd.Function):
    """y = x W^T + b, dx = dy W, and dW = dy^T x, each over operands in FP8.

    A column-parallel layer sums dx over the ranks, a row-parallel one sums y. With sequence
    parallelism, the former all-gathers x [s/t, b, in] and saves only this rank's part.
    """

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator, tp):
        rows, saved = tp.quantize_input(x.reshape(-1, x.shape[-1]))
        ctx.tp, ctx.weight, ctx.accumulator = tp, weight, accumulator
        save(ctx, saved)
        y = multiply(rows, tp.rounded(weight)[0], x.dtype, bias)
        # Not a view: on virtual GPUs, the bias is added to this output in place.
        y = torch.ops.aten._unsafe_view(y, [-1, *x.shape[1:-1], y.shape[-1]])
        return y if tp.is_column else tp.leave(y)

    @staticmethod
    def backward(ctx, grad):
        tp, dx = ctx.tp, None
        dy = grad.reshape(-1, grad.shape[-1])
        rows, dy_of_dw = tp.quantize_grad(dy)
        x = tp.restore_input(restore(ctx))
        dw = (tp.add_weight_grad(ctx.accumulator, dy_of_dw, x, grad.dtype)
              if ctx.needs_input_grad[1] else None)
        if ctx.needs_input_grad[0]:
            dx = multiply(rows, tp.rounded(ctx.weight)[1], grad.dtype)
            dx = dx.view(-1, *grad.shape[1:-1], dx.shape[-1])
            dx = tp.leave(dx) if tp.is_column else dx
        return dx, dw, dy.sum(0) if ctx.needs_input_grad[2] else None, None, None

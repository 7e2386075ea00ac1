"""Linear layers and embedding lookups that accumulate their weight gradients themselves.

Autograd would materialize each micro-batch's weight gradient and add it to `weight.grad`. These
functions hand the gradient's factors to an accumulator instead, as Megatron's
`LinearWithGradAccumulationAndAsyncCommunication` does. The accumulator multiplies them straight
into the gradient buffer (parallel/ddp.py) if the dtypes match, at once, or when a zero-bubble
schedule asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

# On a CPU, matmuls of these dtypes run in fp32. Where oneDNN has no bf16 kernel (as on x86 without
# AVX-512), PyTorch's own takes up to 90 times as long as an fp32 matmul.
HAS_BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
IN_FP32 = (torch.float16,) if HAS_BF16 else (torch.float16, torch.bfloat16)


def to_compute_dtype(x: torch.Tensor) -> torch.Tensor:
    """Return x [..] in the dtype that its matmuls are computed in, which may be x itself."""
    return x.float() if x.device.type == "cpu" and x.dtype in IN_FP32 else x


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [.., n, k] @ b [k, m] in the operands' dtype."""
    return (to_compute_dtype(a) @ to_compute_dtype(b)).to(a.dtype)


def affine(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return x [.., in] @ weight [out, in]^T + bias [out] in x's dtype."""
    bias = None if bias is None else to_compute_dtype(bias)
    return F.linear(to_compute_dtype(x), to_compute_dtype(weight), bias).to(x.dtype)


class DelayedWeightGrads:
    """The delayed matrix multiplications of a model's weight gradients, by key.

    Attributes:
        open: the list that weight gradients are added to, or None to compute them at once.
    """

    def __init__(self) -> None:
        self.open: list[Callable[[], None]] | None = None
        self.by_key: dict[Hashable, list[Callable[[], None]]] = {}

    @contextmanager
    def delay(self, key: Hashable) -> Iterator[None]:
        """Delay the weight gradients of backward passes inside until `compute`."""
        self.open = self.by_key.setdefault(key, [])
        try:
            yield
        finally:
            self.open = None

    @torch.no_grad()
    def compute(self, key: Hashable) -> None:
        """Compute the weight gradients delayed under a key; KeyError if there are none."""
        for compute in self.by_key.pop(key):
            compute()


class GradAccumulator:
    """Accumulates the gradient of one parameter over a step's micro-batches.

    Attributes:
        main_grad: the gradient, a view of the gradient buffer in the parameter's shape.
        buckets: the numbers of those that hold a part of it.
        tied: whether another stage holds the same parameter.
        writes: how often it was written in this step.
        complete: whether it is final and may have been all-reduced.
        written: called after each write, or None.
    """

    def __init__(self, delayed: DelayedWeightGrads, main_grad: torch.Tensor,
                 buckets: list[int], tied: bool) -> None:
        self.delayed, self.main_grad, self.buckets, self.tied = delayed, main_grad, buckets, tied
        self.writes, self.complete = 0, False
        self.written: Callable[[GradAccumulator], None] | None = None

    def add(self, gradient: torch.Tensor) -> None:
        """Add a gradient of the parameter's shape."""
        if self._is_first_write():
            self.main_grad.copy_(gradient)
        else:
            self.main_grad.add_(gradient)
        self._count_write()

    def add_product(self, grad_output: torch.Tensor, inputs: torch.Tensor) -> None:
        """Add grad_output [n, out]^T @ inputs [n, in], a linear layer's weight gradient."""
        self.add_later(lambda: self.add_product_now(grad_output, inputs))

    def add_later(self, add: Callable[[], None]) -> None:
        """Call `add` at once, or later if weight gradients are being delayed."""
        if self.delayed.open is None:
            add()
        else:
            self.delayed.open.append(add)

    def add_rows(self, rows: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add a gradient [n, h] to the given rows (int64 [n]) of an embedding's gradient."""
        if self._is_first_write():
            self.main_grad.zero_()
        self.main_grad.index_add_(0, rows, gradient.to(self.main_grad.dtype))
        self._count_write()

    def take(self, parameter: nn.Parameter) -> None:
        """Move a gradient that autograd accumulated in `parameter.grad` (norms, biases)."""
        if parameter.grad is not None:
            self.add(parameter.grad)
            parameter.grad = None

    def add_product_now(self, grad_output: torch.Tensor, inputs: torch.Tensor) -> None:
        """Do what add_product does, even if weight gradients are being delayed."""
        if self.main_grad.dtype != inputs.dtype or to_compute_dtype(inputs) is not inputs:
            self.add(matmul(grad_output.t(), inputs))
            return
        if self._is_first_write():
            torch.mm(grad_output.t(), inputs, out=self.main_grad)
        else:
            self.main_grad.addmm_(grad_output.t(), inputs)
        self._count_write()

    def _is_first_write(self) -> bool:
        """Return whether to replace the last step's gradient instead of adding to it.

        Raises RuntimeError if the gradient may have been all-reduced already.
        """
        if self.complete:
            raise RuntimeError("a gradient arrived after its all-reduce started: this step writes "
                               "it more often than the last one did; leave out "
                               "--overlap-grad-reduce")
        return self.writes == 0

    def _count_write(self) -> None:
        self.writes += 1
        if self.written is not None:
            self.written(self)


class LinearWithGradAccumulation(torch.autograd.Function):
    """y = x W^T + b. The weight gradient is dy^T x, summed over all tokens."""

    @staticmethod
    def forward(ctx, x, weight, bias, accumulator):
        # The weight outlives the backward pass, so it need not be saved as activations are.
        ctx.weight, ctx.accumulator = weight, accumulator
        ctx.save_for_backward(x)
        return affine(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        flat = grad.reshape(-1, grad.shape[-1])
        ctx.accumulator.add_product(flat, x.reshape(-1, x.shape[-1]))
        x_grad = matmul(grad, ctx.weight) if ctx.needs_input_grad[0] else None
        return x_grad, None, flat.sum(0) if ctx.needs_input_grad[2] else None, None


class EmbeddingWithGradAccumulation(torch.autograd.Function):
    """Rows of an embedding matrix. Only the rows that were looked up receive a gradient."""

    @staticmethod
    def forward(ctx, weight, rows, accumulator):
        ctx.accumulator = accumulator
        ctx.save_for_backward(rows)
        return F.embedding(rows, weight)

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        ctx.accumulator.add_rows(rows.reshape(-1), grad.reshape(-1, grad.shape[-1]))
        return None, None, None


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None,
           accumulator: GradAccumulator | None = None) -> torch.Tensor:
    """Map x [.., in] to x W^T + b [.., out], with weight [out, in] and bias [out].

    The accumulator receives the weight gradient; without one, autograd does, unless the weight is
    frozen.
    """
    if accumulator is None:
        return affine(x, weight, bias)
    return LinearWithGradAccumulation.apply(x, weight, bias, accumulator)


def embedding_lookup(weight: torch.Tensor, rows: torch.Tensor,
                     accumulator: GradAccumulator | None = None) -> torch.Tensor:
    """Return rows (int64 [..]) of an embedding matrix [V, h] as [.., h].

    The accumulator receives the weight gradient; without one, autograd does.
    """
    if accumulator is None:
        return F.embedding(rows, weight)
    return EmbeddingWithGradAccumulation.apply(weight, rows, accumulator)

"""Operations that CUDA runs as several kernels, with memory between them.

Seen in traces of an H100 (tests/virtualgpu/twins/h100.json) and in ATen's sources:
masked_fill clones first (ATen/native/TensorAdvancedIndexing.cpp), and the gradient of a
softmax multiplies gradient and result into a temporary tensor (ATen/native/cuda/SoftMax.cu).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import META, Space

aten = torch.ops.aten
CUDNN_BACKWARD = aten._scaled_dot_product_cudnn_attention_backward.default


def install(gpu: CudaGpu) -> None:
    """Run these operations as CUDA does."""
    softmax = aten._softmax_backward_data.default

    def run(func: torch._ops.OpOverload, *args: object, **kwargs: object) -> Tensor:
        return gpu.dispatch(func, args, kwargs)

    def plain(func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> object:
        return gpu._on_gpu(func, args, kwargs, {Space.GPU})

    def masked_fill(x: Tensor, mask: Tensor, value: object) -> Tensor:
        x, mask = torch.broadcast_tensors(x, mask)
        copied = run(aten.clone.default, x, memory_format=torch.contiguous_format)
        number = isinstance(value, Tensor)
        return run(aten.masked_fill_.Tensor if number else aten.masked_fill_.Scalar, copied, mask,
                   value)

    def softmax_backward(*args: object, **kwargs: object) -> Tensor:
        between = run(aten.mul.Tensor, *args[:2])
        out = plain(softmax, args, kwargs)
        del between
        return out

    def cudnn_backward(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor,
                       *args: object, **kwargs: object) -> tuple[Tensor, ...]:
        """cuDNN wants the gradient laid out as the output, adds up the queries' gradient and each
        row's sum in fp32, and makes gradients of keys and values for every head of the queries."""
        if grad.stride() != out.stride():
            grad = run(aten.copy_.default, run(aten.empty_like.default, out), grad)
        found = plain(CUDNN_BACKWARD, (grad, query, key, value, out, *args), kwargs)
        batch, heads, rows, width = query.shape
        sums = [run(aten.empty.memory_format, [count], dtype=torch.float32, device=META)
                for count in (batch * heads * rows * width, batch * heads * rows)]
        if key.shape[1] < heads:
            sums += [run(aten.empty.memory_format, [batch, heads, *one.shape[2:]],
                         dtype=one.dtype, device=META) for one in (key, value)]
        del sums
        return found

    gpu.whole |= {aten.masked_fill.Scalar: masked_fill, aten.masked_fill.Tensor: masked_fill,
                  softmax: softmax_backward, CUDNN_BACKWARD: cudnn_backward}

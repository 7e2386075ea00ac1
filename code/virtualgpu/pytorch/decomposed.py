"""Operations that CUDA runs in another way than torch does on meta tensors.

Some are several kernels, with temporary memory between them.

They were observed in traces of an H100 (tests/virtualgpu/twins/h100.json) and in ATen's sources:
masked_fill clones first (ATen/native/TensorAdvancedIndexing.cpp), and the gradient of a
softmax multiplies gradient and result into a temporary tensor (ATen/native/cuda/SoftMax.cu).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import META, Space

aten = torch.ops.aten
CUDNN_BACKWARD = aten._scaled_dot_product_cudnn_attention_backward.default
SOFTMAX_BACKWARD = aten._softmax_backward_data.default


def install(gpu: CudaGpu) -> None:
    """Run these operations as CUDA does."""
    gpu.replacements |= {operation: partial(function, gpu) for operation, function in (
        (aten.masked_fill.Scalar, masked_fill), (aten.masked_fill.Tensor, masked_fill),
        (SOFTMAX_BACKWARD, softmax_backward), (CUDNN_BACKWARD, cudnn_backward),
        (aten._assert_async.default, assert_async), (aten._assert_async.msg, assert_async))}


def _run(gpu: CudaGpu, func: torch._ops.OpOverload, *args: object, **kwargs: object) -> Tensor:
    return gpu.dispatch(func, args, kwargs)


def masked_fill(gpu: CudaGpu, x: Tensor, mask: Tensor, value: object) -> Tensor:
    """Fill a clone of x where the mask is True."""
    x, mask = torch.broadcast_tensors(x, mask)
    copied = _run(gpu, aten.clone.default, x, memory_format=torch.contiguous_format)
    fill = aten.masked_fill_.Tensor if isinstance(value, Tensor) else aten.masked_fill_.Scalar
    return _run(gpu, fill, copied, mask, value)


def softmax_backward(gpu: CudaGpu, *args: object, **kwargs: object) -> Tensor:
    """Run the kernel while the product of its first two operands is in memory."""
    product = _run(gpu, aten.mul.Tensor, *args[:2])
    out = gpu.run_on_gpu(SOFTMAX_BACKWARD, args, kwargs, {Space.GPU})
    del product
    return out


def assert_async(gpu: CudaGpu, condition: Tensor, message: str = "") -> None:
    """Launch the kernel that stops the program if a condition is false; unknown ones are true.

    Raises:
        AcceleratorError: the condition is known to be false, as CUDA reports it.
    """
    gpu.run_on_gpu(aten._assert_async.default, (condition,), {}, {Space.GPU})
    if not gpu.values.known(condition):
        gpu.assumptions.note_here("what torch._assert_async checks on the GPU holds")
    elif not gpu.values.value(condition).item():
        raise torch.AcceleratorError(
            f"CUDA error: device-side assert triggered{': ' * bool(message)}{message}")


def cudnn_backward(gpu: CudaGpu, grad: Tensor, query: Tensor, key: Tensor, value: Tensor,
                   out: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, ...]:
    """Run cuDNN's kernel with its temporary memory.

    It needs the gradient in the output's layout, accumulates the query gradient and row sums in
    fp32, and computes key and value gradients for every query head.
    """
    if grad.stride() != out.stride():
        grad = _run(gpu, aten.copy_.default, _run(gpu, aten.empty_like.default, out), grad)
    gradients = gpu.run_on_gpu(CUDNN_BACKWARD, (grad, query, key, value, out, *args), kwargs,
                            {Space.GPU})
    batch, heads, rows, width = query.shape
    temporary = [_run(gpu, aten.empty.memory_format, [count], dtype=torch.float32, device=META)
                 for count in (batch * heads * rows * width, batch * heads * rows)]
    if key.shape[1] < heads:
        temporary += [_run(gpu, aten.empty.memory_format, [batch, heads, *item.shape[2:]],
                           dtype=item.dtype, device=META) for item in (key, value)]
    del temporary
    return gradients

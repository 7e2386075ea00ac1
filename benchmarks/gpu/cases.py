"""The single calls that `rates` times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Call = Callable[[], object]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MATMUL, ATTENTION, BANDWIDTH, OPTIMIZER = "matmul", "attention", "bandwidth", "optimizer"


@dataclass(frozen=True)
class Case:
    """One call to time.

    Attributes:
        group: MATMUL, ATTENTION, BANDWIDTH, or OPTIMIZER.
        name: the operation and its shape.
        dtype: arithmetic of the call, a key of the GPU model's `tflops`.
        make: creates operands on the GPU and returns the call.
        flops: FLOPs of the call, or 0 if it is bandwidth-bound.
        bytes: bytes that the call must read and write, each counted once.
    """

    group: str
    name: str
    dtype: str
    make: Callable[[], Call]
    flops: int = 0
    bytes: int = 0


def matmul(dtype: str, m: int, n: int, k: int, layout: str = "NT") -> Case:
    """Return the case of a matrix multiplication, [m, k] x [k, n].

    Args:
        dtype: "fp32", "tf32", "bf16", "fp16", or "fp8".
        m: rows of the result.
        n: columns of the result.
        k: inner dimension.
        layout: one letter per operand, N for stored as is and T for transposed. NT is a linear
            layer's forward pass, NN the gradient of its input, and TN the gradient of its weight.
    """
    kind = {"bf16": BF16, "fp16": FP16, "fp8": BF16}.get(dtype, FP32)

    def make() -> Call:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a, b = (torch.randn(shape, device="cuda", dtype=kind).transpose(0, 1) if letter == "T" else
                torch.randn(shape[::-1], device="cuda", dtype=kind)
                for letter, shape in zip(layout, ((k, m), (n, k)), strict=True))
        if dtype != "fp8":
            return lambda: a @ b
        a, b = (one.to(torch.float8_e4m3fn) for one in (a, b))
        scale = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, scale, scale, out_dtype=BF16, use_fast_accum=True)
    width = {"fp32": 4, "tf32": 4, "fp8": 1}.get(dtype, 2)
    size = width * (m * k + k * n) + m * n * (2 if dtype == "fp8" else width)
    return Case(MATMUL, f"{dtype} {m} x {n} x {k} {layout}", dtype, make, 2 * m * n * k, size)


def attention(backend: SDPBackend | None, dtype: str, batch: int, heads: int, sequence: int,
              width: int, causal: bool, backward: bool) -> Case:
    """Return the case of a scaled_dot_product_attention call.

    Args:
        backend: the kernel, or None for PyTorch's choice.
        dtype: "bf16" or "fp32".
        batch: number of sequences.
        heads: number of heads of the queries, keys, and values.
        sequence: tokens per sequence.
        width: size of a head.
        causal: apply a causal mask.
        backward: time the backward pass instead of the forward pass.
    """
    def make() -> Call:
        shape = {"size": (batch, sequence, heads, width), "device": "cuda",
                 "dtype": BF16 if dtype == "bf16" else FP32}
        q, k, v = (torch.randn(**shape).transpose(1, 2).requires_grad_(backward)
                   for _ in range(3))

        def forward() -> torch.Tensor:
            if backend is None:
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if not backward:
            return forward
        out = forward()
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    one = 2 * batch * heads * sequence * sequence * width // (2 if causal else 1)
    name = {None: "default", SDPBackend.FLASH_ATTENTION: "flash",
            SDPBackend.EFFICIENT_ATTENTION: "efficient", SDPBackend.CUDNN_ATTENTION: "cuDNN",
            SDPBackend.MATH: "math"}[backend]
    return Case(ATTENTION, f"{name} {dtype} [{batch}, {heads}, {sequence}, {width}]"
                f"{' causal' if causal else ''} {'backward' if backward else 'forward'}",
                dtype, make, one * (5 if backward else 2))


def bandwidth(name: str, shape: tuple[int, ...], dtype: torch.dtype, passes: float,
              make: Callable[[torch.Tensor], Call], group: str = BANDWIDTH) -> Case:
    """Return the case of a bandwidth-bound call.

    Args:
        name: the operation.
        shape: shape of its main operand.
        dtype: dtype of its main operand.
        passes: bytes read and written, as a multiple of the main operand's size.
        make: takes the main operand and returns the call.
        group: BANDWIDTH or OPTIMIZER.
    """
    short = {BF16: "bf16", FP32: "fp32", FP16: "fp16"}[dtype]
    size = int(passes * torch.Size(shape).numel() * dtype.itemsize)
    return Case(group, f"{name} {short} {list(shape)}", short,
                lambda: make(torch.randn(shape, device="cuda", dtype=dtype)), 0, size)


def backward(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Call]:
    """Return a `make` whose call is the backward pass of a function of one tensor."""
    def make(x: torch.Tensor) -> Call:
        x.requires_grad_()
        out = function(x)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)
    return make


def add(x: torch.Tensor) -> Call:
    y = torch.randn_like(x)
    return lambda: x + y


def layer_norm_backward(x: torch.Tensor) -> Call:
    norm = nn.LayerNorm(x.shape[-1], device="cuda", dtype=x.dtype)
    x.requires_grad_()
    out = norm(x)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, norm.weight, norm.bias), grad, retain_graph=True)


def cross_entropy(x: torch.Tensor) -> Call:
    y = torch.randint(x.shape[-1], x.shape[:1], device="cuda")
    return lambda: F.cross_entropy(x, y)


def cross_entropy_backward(x: torch.Tensor) -> Call:
    y = torch.randint(x.shape[-1], x.shape[:1], device="cuda")
    return backward(lambda one: F.cross_entropy(one, y))(x)


def embedding(x: torch.Tensor) -> Call:
    tokens = torch.randint(len(x), (32768,), device="cuda")
    return lambda: F.embedding(tokens, x)


def embedding_backward(x: torch.Tensor) -> Call:
    tokens = torch.randint(len(x), (32768,), device="cuda")
    return backward(lambda one: F.embedding(tokens, one))(x)


def adamw(**options: bool) -> Callable[[torch.Tensor], Call]:
    """Return a `make` whose call is a step of AdamW; 48 parameters share the operand's elements."""
    def make(x: torch.Tensor) -> Call:
        parameters = [nn.Parameter(part.clone()) for part in x.chunk(48)]
        for one in parameters:
            one.grad = torch.randn_like(one)
        optimizer = torch.optim.AdamW(parameters, **options)
        optimizer.step()
        return optimizer.step
    return make


def matmuls(quick: bool) -> Iterator[Case]:
    sizes = (512, 4096, 8192) if quick else (512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
    for dtype in ("fp32", "tf32", "bf16", "fp16", "fp8"):
        for size in sizes:
            if size <= (8192 if dtype == "fp32" else 16384):
                yield matmul(dtype, size, size, size)
    for layout in ("NN", "TN", "TT"):
        for dtype in ("bf16", "fp32"):
            yield matmul(dtype, 4096, 4096, 4096, layout)
    models = ((768, 8192),) if quick else ((768, 8192), (1024, 8192), (2048, 8192), (4096, 8192),
                                           (5120, 8192), (768, 1024), (4096, 1024), (4096, 128))
    for width, tokens in models:  # a GPT's linear layers
        for n, k in ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width)):
            yield matmul("bf16", tokens, n, k)
        yield matmul("bf16", tokens, width, 4 * width, "NN")
        yield matmul("bf16", 4 * width, width, tokens, "TN")
    for vocabulary in (50257, 50304):
        for dtype in ("bf16", "fp32", "tf32"):
            yield matmul(dtype, 8192, vocabulary, 768)
        yield matmul("bf16", 8192, 768, vocabulary, "NN")
        yield matmul("bf16", vocabulary, 768, 8192, "TN")
    for m, n, k in ((4095, 4096, 4096), (4096, 4095, 4096), (4096, 4096, 4095),
                    (4095, 4095, 4095), (4100, 4100, 4100), (4104, 4104, 4104)):
        yield matmul("bf16", m, n, k)


def attentions(quick: bool) -> Iterator[Case]:
    every = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION,
             SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
    for sequence in (2048,) if quick else (1024, 2048, 4096, 8192, 16384):
        for width in (64, 128):
            for causal in (True, False):
                for backend in every:
                    if backend is SDPBackend.MATH and sequence > 4096:
                        continue
                    for back in (False, True):
                        yield attention(backend, "bf16", 16384 // sequence, 2048 // width,
                                        sequence, width, causal, back)
    for sequence in (1024, 4096):
        for back in (False, True):
            yield attention(None, "bf16", 16384 // sequence, 16, sequence, 128, True, back)
            yield attention(SDPBackend.EFFICIENT_ATTENTION, "fp32", 16384 // sequence, 16,
                            sequence, 64, True, back)


def others(quick: bool) -> Iterator[Case]:
    wide = (8192, 16384)
    for dtype in (FP32, BF16):
        yield bandwidth("copy", wide, dtype, 2, lambda x: lambda: x.clone())
        yield bandwidth("add", wide, dtype, 3, add)
        yield bandwidth("mul by a scalar", wide, dtype, 2, lambda x: lambda: x * 2.0)
        yield bandwidth("add in place", wide, dtype, 2, lambda x: lambda: x.add_(1.0))
        yield bandwidth("GELU", wide, dtype, 2, lambda x: lambda: F.gelu(x))
        yield bandwidth("GELU backward", wide, dtype, 3, backward(F.gelu))
        yield bandwidth("dropout", wide, dtype, 2 + 1 / dtype.itemsize,
                        lambda x: lambda: F.dropout(x, 0.1))
        yield bandwidth("transpose and copy", wide, dtype, 2, lambda x: lambda: x.t().contiguous())
        yield bandwidth("cast", wide, dtype, 1 + (4 if dtype is BF16 else 2) / dtype.itemsize,
                        lambda x: lambda: x.to(FP32 if x.dtype is BF16 else BF16))
        yield bandwidth("sum of all", wide, dtype, 1, lambda x: lambda: x.sum())
        yield bandwidth("sum of rows", wide, dtype, 1, lambda x: lambda: x.sum(1))
        yield bandwidth("sum of columns", wide, dtype, 1, lambda x: lambda: x.sum(0))
        yield bandwidth("norm", wide, dtype, 1, lambda x: lambda: x.norm())
        yield bandwidth("fill", wide, dtype, 1, lambda x: lambda: x.fill_(1.0))
        yield bandwidth("zero", wide, dtype, 1, lambda x: lambda: x.zero_())
        for width in (1024, 16384):
            shape = (2**27 // width, width)
            yield bandwidth("softmax", shape, dtype, 2, lambda x: lambda: x.softmax(-1))
            yield bandwidth("softmax backward", shape, dtype, 3,
                            backward(lambda x: x.softmax(-1)))
        for width in (768, 4096):
            shape = (2**26 // width, width)
            yield bandwidth("layer norm", shape, dtype, 2,
                            lambda x: lambda: F.layer_norm(x, x.shape[-1:]))
            yield bandwidth("layer norm backward", shape, dtype, 3, layer_norm_backward)
            yield bandwidth("RMS norm", shape, dtype, 2,
                            lambda x: lambda: F.rms_norm(x, x.shape[-1:]))
        yield bandwidth("cross entropy", (8192, 50304), dtype, 1, cross_entropy)
        yield bandwidth("cross entropy backward", (8192, 50304), dtype, 2, cross_entropy_backward)
        yield bandwidth("embedding of 32768 tokens", (50304, 1024), dtype,
                        2 * 32768 / 50304, embedding)
        yield bandwidth("embedding backward", (50304, 1024), dtype, 1 + 32768 / 50304,
                        embedding_backward)
    for side in (256, 1024, 2048):
        yield bandwidth("add in place", (side, side), FP32, 2, lambda x: lambda: x.add_(1.0))
    for options in ({"fused": True}, {"foreach": True}, {"foreach": False}):
        (how,) = options
        name = f"AdamW({how}={options[how]})"
        for size in (2**20 * 48,) if quick else (2**14 * 48, 2**20 * 48, 2**22 * 48):
            yield bandwidth(name, (size,), FP32, 7, adamw(**options), OPTIMIZER)


def cases(quick: bool) -> list[Case]:
    """Return all cases, or with `quick` a few of each group."""
    return [*matmuls(quick), *attentions(quick), *others(quick)]

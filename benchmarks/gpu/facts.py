"""CUDA as a program sees it: properties, statistics, streams, and error messages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

Fact = Callable[[], object]
MIB = 2**20


def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="cuda")


def properties() -> dict[str, object]:
    """Return the device's properties, without those that identify a single GPU."""
    found = torch.cuda.get_device_properties(0)
    return {name: getattr(found, name) for name in dir(found)
            if not name.startswith("_") and name not in (
                "uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")}


def public_names() -> list[str]:
    return sorted(name for name in dir(torch.cuda) if not name.startswith("_"))


def out_of_memory() -> str:
    x = make(MIB)  # noqa: F841
    try:
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        return re.sub(r"\d+(\.\d+)?", "#", str(error))
    return "no error"


def error_of(run: Callable[[], object]) -> str:
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return "no error"


def stream_facts() -> dict[str, object]:
    side, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    found = {"an event that was never recorded": event.query(), "default": (
        torch.cuda.current_stream() == torch.cuda.default_stream()),
        "default's handle": torch.cuda.default_stream().cuda_stream,
        "priority": side.priority, "repr of default": repr(torch.cuda.default_stream()),
        "repr of an event": repr(event)[:26], "side is current": False}
    with torch.cuda.stream(side):
        found["side is current"] = torch.cuda.current_stream() == side
    found["idle stream is done"] = side.query()
    other = torch.cuda.Event(enable_timing=True)
    event.record()
    big = torch.randn(8192, 8192, device="cuda")
    for _ in range(4):
        big @ big
    other.record()
    found["a long kernel is still running"] = not other.query()
    found["elapsed too early"] = error_of(lambda: event.elapsed_time(other))
    other.synchronize()
    found["it is over"] = other.query()
    found["elapsed is positive"] = event.elapsed_time(other) > 0
    plain = torch.cuda.Event()
    plain.record()
    plain.synchronize()
    found["without timing"] = error_of(lambda: plain.elapsed_time(other))
    found["not recorded"] = error_of(
        lambda: torch.cuda.Event(enable_timing=True).elapsed_time(other))
    return found


def asynchronous() -> bool:
    """Return whether a launch returns before its kernel has finished."""
    big = torch.randn(8192, 8192, device="cuda")
    big @ big
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(4):
        big @ big
    launched = time.perf_counter() - begin
    torch.cuda.synchronize()
    return launched < 0.5 * (time.perf_counter() - begin)


def tensors() -> dict[str, object]:
    x = make(2, 3)
    return {"repr": repr(x), "type": x.type(), "half": x.half().type(), "device": str(x.device),
            "is_cuda": x.is_cuda, "get_device": x.get_device(), "storage": str(
                x.untyped_storage().device), "str of a parameter": str(torch.nn.Parameter(x)),
            "empty": repr(make(0)), "generator": str(torch.Generator("cuda").device),
            "rand": torch.rand(2, device="cuda").dtype, "is_pinned": x.is_pinned(),
            "data_ptr aligned": x.data_ptr() % 512, "is_leaf": x.is_leaf,
            "default device": str(torch.empty(0, device="cuda").device),
            "is_shared": x.is_shared(), "numel of nonzero": x.nonzero().shape,
            "where": len(torch.where(x > 0)), "isin": torch.isin(x, x).all().item(),
            "sum of ints": make(3, dtype=torch.int32).sum().dtype,
            "mean of ints": error_of(lambda: make(3, dtype=torch.int32).mean()),
            "true division of ints": (make(3, dtype=torch.int32) / 2).dtype,
            "half plus scalar": (make(3, dtype=torch.half) + 1.5).dtype,
            "half plus a 0-d fp32 tensor": (make(3, dtype=torch.half) + torch.tensor(1.)).dtype,
            "random state": torch.cuda.get_rng_state().shape,
            "seed": torch.cuda.initial_seed() == torch.initial_seed()}


def fails(what: str) -> Fact:
    names = {"torch": torch, "F": F, "make": make}
    return lambda: error_of(lambda: eval(what, names))


ERRORS = """
make(3) + torch.ones(3)
torch.ones(3) + make(3)
make(3).add_(torch.ones(3))
torch.ones(3).add_(make(3))
make(3, 3) @ torch.ones(3, 3)
torch.ones(3, 3) @ make(3, 3)
torch.cat([make(3), torch.ones(3)])
torch.stack([torch.ones(3), make(3)])
F.linear(make(3, 3), torch.ones(3, 3))
F.linear(torch.ones(3, 3), make(3, 3), make(3))
F.embedding(torch.tensor([1]), make(3, 3))
F.embedding(make(1, dtype=torch.int64), torch.ones(3, 3))
F.cross_entropy(make(3, 3), torch.tensor([0, 1, 2]))
F.layer_norm(make(3, 3), (3,), torch.ones(3), torch.ones(3))
F.conv2d(make(1, 3, 8, 8), torch.ones(3, 3, 3, 3))
F.scaled_dot_product_attention(make(1, 1, 8, 8), torch.ones(1, 1, 8, 8), make(1, 1, 8, 8))
torch.where(make(3) > 0, make(3), torch.ones(3))
make(3)[torch.tensor([0])]
torch.ones(3)[make(1, dtype=torch.int64)]
make(3).index_select(0, torch.tensor([0]))
make(3, 3).gather(0, torch.zeros(1, 3, dtype=torch.int64))
make(3).masked_fill(torch.ones(3) > 0, 0.0)
make(3).copy_(torch.ones(3))
torch.ones(3).copy_(make(3))
make(3).numpy()
make(3).__array__()
make(3).pin_memory()
make(3, 3) @ make(4, 3)
make(3, 3) @ make(3, 3, dtype=torch.half)
make(3) + make(4)
torch.addmm(make(3), make(3, 3), make(3, 3, dtype=torch.half))
F.linear(make(3, 3), make(3, 3, dtype=torch.half))
F.linear(make(3, 4), make(3, 3))
F.conv2d(make(1, 3, 8, 8), make(3, 3, 3, 3, dtype=torch.half))
F.layer_norm(make(3, 3), (3,), make(3, dtype=torch.half))
F.embedding(make(3), make(3, 3))
F.cross_entropy(make(3, 3), make(3, dtype=torch.int32))
make(3).view(2, 2)
torch.ones(3, device="cuda:7")
torch.cuda.set_device(7)
torch.cuda.get_device_properties(7)
torch.device("cuda:x")
make(3).to("cuda:3")
torch.randn(3, generator=torch.Generator("cpu"), device="cuda")
torch.randn(3, generator=torch.Generator("cuda"))
torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], fused=True).step()
make(3).backward()
make(3, dtype=torch.float8_e4m3fn) + make(3, dtype=torch.float8_e4m3fn)
make(16, 16, dtype=torch.float8_e4m3fn) @ make(16, 16, dtype=torch.float8_e4m3fn)
torch._scaled_mm(make(16, 16, dtype=torch.half), make(16, 16, dtype=torch.half), make(), make())
torch._scaled_mm(make(17, 17, dtype=torch.float8_e4m3fn), make(17, 17, dtype=torch.float8_e4m3fn).t(), make(), make())
torch._scaled_mm(make(16, 16, dtype=torch.float8_e4m3fn), make(16, 16, dtype=torch.float8_e4m3fn), make(), make())
make(4, dtype=torch.int32) @ make(4, dtype=torch.int32)
make(4, 4, dtype=torch.int32) @ make(4, 4, dtype=torch.int32)
torch.empty(-1, device="cuda")
bool(make(2))
make(2).item()
make(2).tolist()
len(make())
torch.from_numpy(make(2).cpu().numpy()).device
""".strip().splitlines()  # noqa: E501

FACTS: dict[str, Fact] = {
    "get_device_properties": properties,
    "get_device_name": lambda: torch.cuda.get_device_name(),
    "get_device_capability": lambda: torch.cuda.get_device_capability(),
    "device_count": lambda: torch.cuda.device_count(),
    "current_device": lambda: torch.cuda.current_device(),
    "is_available": lambda: torch.cuda.is_available(),
    "is_bf16_supported": lambda: torch.cuda.is_bf16_supported(),
    "is_tf32_supported": lambda: torch.cuda.is_tf32_supported(),
    "get_arch_list": lambda: torch.cuda.get_arch_list(),
    "total of mem_get_info": lambda: torch.cuda.mem_get_info()[1],
    "context, MiB": lambda: (make(1), (lambda free, total: (
        total - free - torch.cuda.memory_reserved()) // MIB)(*torch.cuda.mem_get_info()))[1],
    "memory_stats keys": lambda: (make(1), sorted(torch.cuda.memory_stats()))[1],
    "memory_summary": lambda: (make(1), torch.cuda.memory_summary())[1],
    "public names of torch.cuda": public_names,
    "nccl version": lambda: torch.cuda.nccl.version(),
    "version of CUDA": lambda: torch.version.cuda,
    "cuDNN version": lambda: torch.backends.cudnn.version(),
    "cuDNN is available": lambda: torch.backends.cudnn.is_available(),
    "float32 matmul precision": lambda: torch.get_float32_matmul_precision(),
    "TF32 for matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 for cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "SDPA backends enabled": lambda: (
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cuda.math_sdp_enabled()),
    "default autocast dtype": lambda: torch.get_autocast_dtype("cuda"),
    "out-of-memory text": out_of_memory,
    "streams": stream_facts,
    "launches are asynchronous": asynchronous,
    "tensors": tensors,
    **{text: fails(text) for text in ERRORS},
}


def evaluate() -> dict[str, object]:
    """Return every fact by name; a fact with several values becomes several entries."""
    found: dict[str, object] = {}
    for name, fact in FACTS.items():
        try:
            value = fact()
        except Exception as error:
            value = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if isinstance(value, dict):
            found |= {f"{name}: {key}": str(item) for key, item in value.items()}
        else:
            found[name] = value if isinstance(value, list) else str(value)
    return found

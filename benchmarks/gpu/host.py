"""CPU time of launches, of copies over PCIe, and of allocations."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.nn import functional as F

Costs = dict[tuple[str, str], float]  # by (operation, unit)
MIB = 2**20


def host_seconds(call: Callable[[], object], calls: int = 200, repeats: int = 7) -> float:
    """Return the CPU time per call in seconds, without waiting for the GPU.

    Args:
        call: the call to time.
        calls: calls per repeat.
        repeats: repeats, of which the median is returned.
    """
    found = []
    for _ in range(repeats):
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls)
        torch.cuda.synchronize()
    return median(found)


def launches() -> Costs:
    """Return the CPU time of eager calls on tiny tensors, in microseconds."""
    x, w = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    b, t = torch.randn(64, device="cuda"), torch.randint(64, (64,), device="cuda")
    layer, out = nn.Linear(64, 64, device="cuda"), torch.empty_like(x)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(24))).cuda()
    many = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(48)]
    for one in many:
        one.grad = torch.randn_like(one)
    q = torch.randn(1, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    adam = {how: torch.optim.AdamW(many, **{how: True}) for how in ("foreach", "fused")}

    def both() -> None:
        model(x).sum().backward()

    def autocast() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            model(x)

    calls = {
        "x.add_(1)": lambda: x.add_(1.0), "x + w": lambda: x + w,
        "torch.add(x, w, out=out)": lambda: torch.add(x, w, out=out), "x @ w": lambda: x @ w,
        "F.linear with a bias": lambda: F.linear(x, w, b), "nn.Linear": lambda: layer(x),
        "softmax": lambda: x.softmax(-1), "layer norm": lambda: F.layer_norm(x, (64,), b, b),
        "GELU": lambda: F.gelu(x), "cross entropy": lambda: F.cross_entropy(x, t),
        "sum": lambda: x.sum(), "clone": lambda: x.clone(),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True)}
    found = {(name, "us"): 1e6 * host_seconds(call) for name, call in calls.items()}
    long = {"24 linear layers, forward": lambda: model(x),
            "24 linear layers, forward and backward": both,
            "24 linear layers, forward under autocast": autocast,
            "AdamW(foreach=True), 48 tensors": adam["foreach"].step,
            "AdamW(fused=True), 48 tensors": adam["fused"].step}
    return found | {(name, "us"): 1e6 * host_seconds(call, 8, 5) for name, call in long.items()}


def copies() -> Costs:
    """Return the bandwidth between the CPU and the GPU, and the time to read one number."""
    found: Costs = {}
    for size in (64 * 2**10, 4 * MIB, 256 * MIB):
        there = torch.empty(size, dtype=torch.uint8, device="cuda")
        plain = torch.ones(size, dtype=torch.uint8)
        for how, here in (("pageable", plain), ("pinned", plain.pin_memory())):
            for way, into, source in (("to the GPU", there, here), ("to the CPU", here, there)):
                def copy(into=into, source=source) -> None:
                    into.copy_(source)
                    torch.cuda.synchronize()
                took = host_seconds(copy, 3, 5)
                found[f"{size // 1024} KiB, {how}, {way}", "GB/s"] = size / took / 1e9
    x = torch.ones((), device="cuda")
    found["x.item() of an idle GPU", "us"] = 1e6 * host_seconds(lambda: x.item(), 50)
    found["torch.cuda.synchronize() of an idle GPU", "us"] = 1e6 * host_seconds(
        torch.cuda.synchronize, 50)
    return found


def allocations() -> Costs:
    """Return the CPU time of allocations, from the cache and from CUDA, in microseconds."""
    found: Costs = {}
    for size in (512, 2 * MIB, 64 * MIB, 1024 * MIB):
        def make(size=size) -> torch.Tensor:
            return torch.empty(size, dtype=torch.uint8, device="cuda")
        found[f"{size // 1024} KiB from the cache" if size >= 1024 else "512 bytes from the cache",
              "us"] = 1e6 * host_seconds(make)
        fresh = []
        for _ in range(5):
            torch.cuda.empty_cache()
            begin = time.perf_counter()
            kept = make()
            fresh.append(time.perf_counter() - begin)
            del kept
        found[f"{size // 1024} KiB from CUDA" if size >= 1024 else "512 bytes from CUDA",
              "us"] = 1e6 * median(fresh)
    return found


HOST: dict[str, Callable[[], Costs]] = {
    "CPU time per eager call": launches,
    "Copies between the CPU and the GPU": copies,
    "Allocations": allocations,
}

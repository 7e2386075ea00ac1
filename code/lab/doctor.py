"""Measure what this machine's processor does with each dtype: `lab doctor`.

The same torch takes different paths on different processors. Some are so slow that a program seems
to hang, so the first question about a slow step is which dtype the processor multiplies slowly.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

SIZE, REPEATS, SLOW = 512, 5, 20  # SLOW: times the time of an fp32 GEMM
MOST_SECONDS = 1.0  # after which a GEMM is not repeated
INSTRUCTIONS = {  # what torch and oneDNN choose kernels by, by the names in /proc/cpuinfo
    "avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16",
    "avx512_fp16": "AVX-512 FP16", "amx_tile": "AMX", "amx_fp16": "AMX FP16", "asimd": "NEON",
    "sve": "SVE", "bf16": "BF16", "fphp": "FP16"}
SIXTEEN = ("the trainer multiplies in fp32 here, and rounds the result; in your own programs, do "
           "the same, or use fp32")
INSTEAD = {
    "fp16": SIXTEEN,
    "bf16": SIXTEEN,
    "fp8": "lab 13 will be slow here; please report this processor",
    "fp64": "FP8 sums are accumulated in fp64, so lab 13 will be slow here"}


@dataclass(frozen=True)
class Gemm:
    """The measured time of one matrix multiplication.

    Attributes:
        dtype: its name.
        seconds: the median time of one [SIZE, SIZE] @ [SIZE, SIZE].
    """

    dtype: str
    seconds: float

    @property
    def rate(self) -> float:
        """FLOP/s."""
        return 2 * SIZE**3 / self.seconds


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "time a GEMM in each dtype on this machine's processor, and warn about slow ones"
    subparsers.add_parser("doctor", help=text, description=text).set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run `lab doctor`."""
    import torch

    print("\n".join(processor()))
    print(f"torch      {torch.__version__}, kernels for {torch.backends.cpu.get_cpu_capability()}, "
          f"{torch.get_num_threads()} threads")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    print("compiler   " + (f"{compiler}, for torch.compile" if compiler else
                           "no g++: torch.compile needs one on a CPU (the labs do not use it)"))
    print("\n".join(report([measure(name, call) for name, call in gemms().items()])))


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Return the lines about the processor.

    Args:
        cpuinfo: as Linux describes processors.
    """
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or f"{platform.machine()} {fields.get('CPU part', '')}".strip()
    flags = (fields.get("flags") or fields.get("Features", "")).split()
    known = [shown for flag, shown in INSTRUCTIONS.items() if flag in flags]
    return [f"processor  {name}, {len(os.sched_getaffinity(0))} CPUs for this process",
            f"has        {', '.join(known) or 'none of the vector instructions known here'}"]


def gemms() -> dict[str, Callable[[], object]]:
    """Return a matrix multiplication for each dtype, under its name."""
    import torch

    torch.manual_seed(0)
    x, one = torch.randn(SIZE, SIZE), torch.ones(())
    operands = {"fp32": x, "fp64": x.double(), "bf16": x.bfloat16(), "fp16": x.half()}
    calls = {name: (lambda a=a: a @ a) for name, a in operands.items()}
    x8 = x.to(torch.float8_e4m3fn)
    calls["fp8"] = lambda: torch._scaled_mm(x8, x8.t(), one, one, out_dtype=torch.bfloat16)
    return calls


def measure(dtype: str, call: Callable[[], object]) -> Gemm:
    """Time a call, after one that is not counted.

    Args:
        dtype: its name.
        call: one matrix multiplication.
    """
    call()
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < MOST_SECONDS:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return Gemm(dtype, statistics.median(times))


def report(measured: Iterable[Gemm]) -> list[str]:
    """Return a table, and a warning for each dtype that is much slower than fp32.

    Args:
        measured: the dtypes; fp32 is among them.
    """
    rows = {gemm.dtype: gemm for gemm in measured}
    plain = rows["fp32"].seconds
    lines = [f"GEMM of [{SIZE}, {SIZE}] matrices",
             f"{'dtype':<6}{'time':>11}{'GFLOP/s':>11}{'vs. fp32':>12}"]
    lines += [f"{gemm.dtype:<6}{1e3 * gemm.seconds:>8.2f} ms{gemm.rate / 1e9:>11.1f}"
              f"{gemm.seconds / plain:>11.1f}x" for gemm in rows.values()]
    return lines + [f"warning: {gemm.dtype} GEMMs take {gemm.seconds / plain:.0f} times as long as "
                    f"fp32 ones on this processor: {INSTEAD[gemm.dtype]}"
                    for gemm in rows.values() if gemm.seconds > SLOW * plain]

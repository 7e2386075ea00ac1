"""Numerics hold whatever vector instructions the processor has.

PyTorch, oneDNN, and MKL choose kernels by the processor, and other kernels sum in another order. So
a part of the tests runs again with narrower instructions than this machine's, which is the nearest
that one machine comes to the others: no bound and no comparison may hold for one vendor only.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
FEW_BITS = ("tests/minite/test_cpu_gemm.py", "tests/minite/test_functional.py",
            "tests/minite/test_quantize.py", "tests/minimegatron/test_precision.py",
            "tests/minimegatron/test_fp8.py")
FP32 = ("tests/minimegatron/test_tensor_parallel.py", "tests/minimegatron/test_recompute.py",
        "tests/minimegatron/test_dropout.py", "tests/minimegatron/test_model.py")
LAYOUTS = "tests/minimegatron/test_precision_layouts.py"  # all are slow
ALL = ("tests/minimegatron", "tests/minite", "tests/virtualgpu", "tests/lablib",
       "tests/examples")
SETS = {  # what PyTorch's own kernels use, and the most that oneDNN's may
    "no vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512 without AMX, BF16, and FP16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}
# What `make test` runs under two of them; `make stress` runs ALL under each. oneDNN has the GEMMs
# of 16 and 8 bits. The third set's kernels are between those of AVX2 and a machine's own.
CHOSEN = {
    "no vectors": (*FEW_BITS, *FP32, LAYOUTS, "-k", "not slow or test_a_layout_equals and fp16"),
    "AVX2": (*FEW_BITS, "-k", "not slow")}
PROGRAM = """import sys, pytest, torch
print("kernels for", torch.backends.cpu.get_cpu_capability())
sys.exit(pytest.main(sys.argv[1:]))"""


def environment(name: str) -> dict[str, str]:
    """Return the environment of a program under a set of instructions, outside of any worker."""
    outside = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return outside | SETS[name]


def run_again(name: str, *words: str) -> None:
    """Run tests under a set of instructions; fail with what they print."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-q", "-p", "no:cacheprovider", *words], cwd=ROOT,
        env=environment(name), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout, done.stdout[-500:]
    wanted = SETS[name].get("ATEN_CPU_CAPABILITY", torch.backends.cpu.get_cpu_capability())
    assert done.stdout.startswith(f"kernels for {wanted.upper()}\n")  # so the setting took effect


@pytest.mark.parametrize("name", CHOSEN)
def test_numerics_hold_under_other_instructions(name):
    run_again(name, *CHOSEN[name], "-m", "not stress")


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SETS)
def test_everything_that_computes_holds_under_other_instructions(name):
    run_again(name, *ALL, "-m", "not stress and not image and not oracle and not alone "
                                "and not cluster and not browser")

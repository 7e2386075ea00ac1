"""Virtual GPUs do what a real H100 was seen to do: kernels, memory, and dtypes.

h100.json was written by `GPU_RECORD=FILE python -m benchmarks.gpu --parts twins` on the machine
that its header names. The programs are those of benchmarks/gpu/programs.py.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import kernels
from benchmarks.gpu import attention_choice, dtypes, sides
from benchmarks.gpu.probe import observe
from benchmarks.gpu.programs import PROGRAMS
from benchmarks.gpu.recorded import ungrouped
from virtualgpu.core import cards

pytestmark = pytest.mark.slow
RECORD = json.loads((Path(__file__).parent / "h100.json").read_text())
H100 = cards.find("h100")
SAME_SEQUENCE = ("GPT, bf16 autocast", "GPT, fp16 and GradScaler",
                 "GPT, bf16, activation checkpointing", "convolutions, fp16", "DDP, one rank",
                 "inference_mode", "_scaled_mm")
# The order differs where CUDA's operation launches another one before its own kernel.
SAME_CALLS = ("GPT, bf16, hand-written attention", "attention, bf16, causal",
              "attention, bf16, bool mask", "attention, bf16, dropout", "attention, bf16, grouped")
# CUDA copies x where x ** 1 is computed.
ONLY_MEMORY = ("MLP, AdamW(foreach=True)",)
ATTENTION = {name for name in SAME_CALLS if name.startswith("attention")}
EXACT_MEMORY = {"MLP, AdamW(foreach=True)", "convolutions, fp16", "_scaled_mm", "inference_mode",
                *ATTENTION}
# What the allocator leaves unsplit depends on every temporary buffer before.
LARGEST_ERROR = 3 * 2**20
# Some temporary memory is not modeled, such as cuDNN's workspaces; otherwise at most one segment of
# small blocks differs.
NOT_MODELED = {"convolutions, fp16": 122 * 2**20, "MLP, AdamW(foreach=True)": 32 * 2**20,
               **dict.fromkeys(ATTENTION, 20 * 2**20)}
SMALL_SEGMENT = 2 * 2**20


def recorded(name: str) -> tuple[list[str], list]:
    """A program's operations that launch kernels, and its memory at each mark."""
    result = RECORD["programs"][name]
    return [RECORD["launches"][at][0] for at in result["launches"]], result["marks"]


@pytest.mark.parametrize("name", (*SAME_SEQUENCE, *SAME_CALLS, *ONLY_MEMORY))
def test_a_program_launches_and_allocates_what_it_did_on_the_real_gpu(name):
    operations, marks = recorded(name)
    result = sides.on_virtual(lambda: observe(PROGRAMS[name], steps=1), H100)
    real, virtual = ([op for op in ops if op not in kernels.INSIDE] for ops in (
        operations, [launch.op for launch in result["launches"]]))
    if name in SAME_SEQUENCE:
        assert virtual == real
    elif name in SAME_CALLS:
        assert Counter(virtual) == Counter(real)
    assert [point for point, _ in result["marks"]] == [point for point, _ in marks]
    pairs = [(now, guess) for (_, now), (_, guess) in zip(marks, result["marks"], strict=True)]
    allocated, reserved = ([guess[at] - now[at] for now, guess in pairs] for at in (0, 2))
    if name in EXACT_MEMORY:
        assert allocated == [0] * len(allocated)
    else:
        assert max(map(abs, allocated)) < LARGEST_ERROR, allocated
    assert -NOT_MODELED.get(name, SMALL_SEGMENT) <= min(reserved), reserved
    assert max(reserved) <= SMALL_SEGMENT, reserved


def test_a_step_launches_what_a_public_trace_of_a_v100_shows():
    """Small reductions need no memset on a V100, so the virtual one launches three more."""
    result = kernels.compare(*kernels.v100())
    assert result == kernels.Agreement(order=True, calls=10, kernels=8, operations=10, real=32,
                                       virtual=35)


def test_attention_chooses_the_kernels_that_the_real_gpu_chose():
    result = sides.on_virtual(attention_choice.evaluate, H100)
    assert {name: result[name] for name in RECORD["attention"]} == RECORD["attention"]
    assert set(RECORD["attention"].values()) == {"cuDNN", "flash", "efficient", "math", "error"}


# What CUDA refuses and a virtual GPU does not, or the other way around.
ALWAYS = {"F.conv_transpose2d(c, c[:, :, :3, :3])"}
REFUSED = {
    "autocast torch.bfloat16, bf16": {*ALWAYS, "a.det()", "torch.histc(a)"},
    "autocast torch.float16, fp32": ALWAYS,
    "autocast torch.float16, fp32 with bf16": {
        *ALWAYS, "a.index_add(0, t, b)", "torch.lerp(a, b, 0.5)",
        "a.clone().addmm_(a, b)"},
    "autocast torch.bfloat16, fp16": {*ALWAYS, "a.det()", "torch.histc(a)"}}


@pytest.mark.parametrize("setting", REFUSED)
def test_results_have_the_dtypes_that_they_had_on_the_real_gpu(setting):
    real = ungrouped({setting: RECORD["dtypes"][setting]}, RECORD["operations"])
    result = sides.on_virtual(lambda: dtypes.evaluate([setting]), H100)
    differing = {name.partition(": ")[2] for name, dtype in real.items()
                 if result[name].split(":")[0] != dtype}
    assert differing == REFUSED[setting]
    assert len(real) > 200

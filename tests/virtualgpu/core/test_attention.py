"""The rates of fused attention kernels are those of the H100 that they were fitted to."""

import json
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import mean

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import virtualgpu
from virtualgpu.core.cards import find
from virtualgpu.core.rules.attention import (
    CUDNN,
    EFFICIENT,
    FLASH,
    STACK,
    AttentionKernel,
    attention_rate,
)
from virtualgpu.core.stacks import STACKS, under

RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "gpu_h100.json"
CALL = re.compile(r"(flash|cuDNN|efficient) (bf16|fp32) \[\d+, \d+, (\d+), (\d+)\] (causal )?(\w+)")
H100 = find("h100")


@pytest.fixture(scope="module")
def errors():
    """{(kernel, dtype, pass): errors of the modeled rates}"""
    tables = json.loads(RECORD.read_text())["parts"]["rates"]["result"]["tables"]
    (rows,) = (table["rows"] for table in tables if table["title"] == "Attention")
    actual = defaultdict(list)
    for call, *_, measured, _ in rows:
        if match := CALL.match(call):
            kernel, dtype, length, width, causal, direction = match.groups()
            attention = AttentionKernel(kernel.lower(), direction == "backward", int(width),
                                        int(length),
                                  bool(causal))
            rate = attention_rate(H100, dtype, attention)
            actual[kernel.lower(), dtype, direction].append(rate / measured / 1e12 - 1)
    return actual


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("kernel", [FLASH, CUDNN, EFFICIENT])
def test_rates_are_those_of_an_h100(errors, kernel, direction):
    assert len(errors[kernel, "bf16", direction]) == 20
    assert mean(map(abs, errors[kernel, "bf16", direction])) < 0.04


def test_fp32_has_one_rate(errors):
    assert max(map(abs, errors[EFFICIENT, "fp32", "forward"])) < 0.07


def test_a_stack_chooses_the_kernel_where_the_program_does_not():
    assert H100.efficiency.fused == FLASH
    core = under(H100, STACKS["megatron-core"])
    chosen, cudnn, flash = (
        attention_rate(core, "bf16", AttentionKernel(kernel, False, 128, 2048, True))
                            for kernel in (STACK, CUDNN, FLASH))
    assert chosen == cudnn > 1.5 * flash
    assert attention_rate(find("a100"), "bf16", AttentionKernel(CUDNN, False, 128, 2048, True)) == (
        attention_rate(find("a100"), "bf16", AttentionKernel(FLASH, False, 128, 2048, True)))


def attend():
    q = torch.randn(1, 8, 4096, 128, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.cuda.synchronize()


def attend_in_order(*backends):
    with sdpa_kernel(list(backends), set_priority=True):
        attend()


def test_the_program_and_the_environment_choose_the_kernel(monkeypatch):
    """Hopper's default is cuDNN; programs of years in which it was not say so as on a real GPU."""
    def seconds(program, *arguments):
        return virtualgpu.run(partial(program, *arguments), "h100:1")[0].seconds

    flash, cudnn = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
    default, first_flash = seconds(attend), seconds(attend_in_order, flash, cudnn)
    assert first_flash > 1.2 * default
    assert seconds(attend_in_order, cudnn, flash) == default
    monkeypatch.setenv("TORCH_CUDNN_SDPA_PREFERRED", "0")
    assert seconds(attend) == first_flash
    assert seconds(attend_in_order, cudnn, flash) == default

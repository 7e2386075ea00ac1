"""torch.compile is eager, with a note, or its elementwise kernels are fused on request."""

import itertools
import json
import re
import time

import pytest
import torch
from torch import nn

import virtualgpu
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

ROWS, WIDTH = 8192, 4096


class Norm(nn.Module):
    """RMSNorm as Llama has it: eight elementwise kernels and a reduction."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return y.to(x.dtype) * self.weight


def timed(**options):
    """Seconds of the forward and the backward pass, compiled with these options."""
    def program():
        model = torch.compile(Norm().cuda().bfloat16(), **options)
        x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        times = []
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        y = model(x)
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        y.backward(torch.ones_like(y))
        torch.cuda.synchronize()
        times.append(time.perf_counter())
        return times[1] - times[0], times[2] - times[1]
    return program


def run(program, fuse):
    (rank,) = run_ranks(parse("h100"), Settings(fuse=fuse), program)
    assert rank.error is None, rank.error
    return rank


def test_a_fused_kernel_reads_its_input_and_writes_what_is_needed():
    eager, fused = run(timed(), fuse=False), run(timed(), fuse=True)
    # In units of one element: x, its fp32 copy and its bf16 result for backward, and the output.
    card, size = parse("h100").card, ROWS * WIDTH * (2 + 4 + 2 + 2)
    least = size / (card.bandwidth * card.efficiency.vector)
    assert least < fused.value[0] < 1.2 * least
    assert all(2 * little < much for little, much in zip(fused.value, eager.value, strict=True))
    assert fused.peak == eager.peak
    assert any("memory is that of eager mode" in one.text for one in fused.assumptions)
    assert any("modeled as eager mode" in one.text for one in eager.assumptions)


def test_the_kernels_of_a_step_are_the_fused_ones():
    def program():
        model = torch.compile(Norm().cuda())
        for _ in range(3):
            model(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            virtualgpu.mark_step()

    rank = run(program, fuse=True)
    assert rank.account["step"]["count"] == 3
    assert 3 * rank.account["step"]["kernel_seconds"] == pytest.approx(
        sum(rank.busy.values()), rel=0.1)  # the first step also makes the model


@pytest.mark.parametrize("mode, graphed", [("default", False), ("reduce-overhead", True)])
def test_cuda_graphs_of_a_mode_are_not_modeled(mode, graphed):
    rank = run(timed(mode=mode), fuse=False)
    assert any("CUDA graphs are not modeled outside of inference" in one.text
               for one in rank.assumptions) == graphed


def test_everything_that_compiles():
    @torch.no_grad()
    def program():
        x = torch.ones(4, device="cuda")

        @torch.compile
        def one(x):
            return x * 2 + 1

        @torch.compile(dynamic=True)
        def other(x):
            return x * 3 - 1

        model = Norm().cuda()
        model.compile()
        assert model(torch.ones(WIDTH, device="cuda")).shape == (WIDTH,)
        assert (one(x) * 2 + other(x)).tolist() == [8.0] * 4
        y = one(x)
        del x
        return y

    for fuse in (False, True):
        assert run(program, fuse).value.tolist() == [3.0] * 4


def test_code_outside_of_compiled_regions_is_not_fused():
    def program():
        x = torch.ones(ROWS, WIDTH, device="cuda")
        for _ in range(4):
            x = x * 2
        torch.cuda.synchronize()

    assert run(program, fuse=True).seconds == run(program, fuse=False).seconds


def test_a_trace_has_fused_kernels_and_changes_no_time(tmp_path):
    """Inductor's names, with the storages that each kernel reads and writes."""
    (plain,) = run_ranks(parse("h100"), Settings(fuse=True), timed())
    (traced,) = run_ranks(parse("h100"), Settings(fuse=True, trace=str(tmp_path)), timed())
    assert traced.error is None, traced.message
    assert (traced.value, traced.seconds, traced.peak) == (plain.value, plain.seconds, plain.peak)
    events = json.loads((tmp_path / "rank0.pt.trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    fused = [event for event in kernels if event["name"].startswith("triton_")]
    assert any(re.fullmatch(r"triton_red_fused_.*mean.*rsqrt.*", event["name"]) for event in fused)
    assert sum(event["dur"] for event in fused) == pytest.approx(
        1e6 * traced.busy["fused kernels"], rel=1e-3)
    assert sum(event["dur"] for event in kernels) == pytest.approx(
        1e6 * sum(traced.busy.values()), rel=1e-3)
    ends = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(ends))
    nodes = json.loads((tmp_path / "rank0.chakra.json").read_text())["nodes"]
    names = {node["id"]: node["name"] for node in nodes}
    (last,) = [node for node in nodes if node["name"].startswith("triton_")][-1:]
    assert last["data_deps"] and last["duration_micros"] > 0 and names[last["id"]] == last["name"]

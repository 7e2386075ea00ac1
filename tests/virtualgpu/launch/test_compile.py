"""torch.compile fuses elementwise kernels, and its backward pass recomputes them; or it is eager,
with a note."""

import itertools
import json
import re
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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


def run(program, fuse=None):
    (rank,) = run_ranks(parse("h100"), Settings(fuse=fuse), program)
    assert rank.error is None, rank.error
    return rank


def test_a_fused_kernel_reads_its_input_and_writes_what_is_needed():
    eager, fused = run(timed(), fuse=False), run(timed(), fuse=None)
    # Bytes per element. Forward: x and the output. Backward: x, the gradient, and x's, after the
    # program itself has written the gradient.
    card, size = parse("h100").card, ROWS * WIDTH
    seconds = [size * bytes / (card.bandwidth * card.efficiency.vector) for bytes in (4, 2 + 6)]
    for least, found in zip(seconds, fused.value, strict=True):
        assert least < found < 1.2 * least
    assert all(4 * little < much for little, much in zip(fused.value, eager.value, strict=True))
    assert any("the backward pass recomputes them" in one.text for one in fused.assumptions)
    assert any("modeled as eager mode" in one.text for one in eager.assumptions)


def in_fp8(x):
    """Return x in FP8 with one scale, as torchao's linear layers cast it."""
    scale = 448 / x.abs().max().double().clamp(min=1e-12)
    return (x.float() * scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)


@pytest.mark.parametrize("function, expected", [
    (in_fp8, 2 + 2 + 1),  # one kernel finds the scale, and one needs it
    (lambda x: (in_fp8(x), in_fp8(x)), 2 + 2 + 1),  # the second computes what the first did
    (lambda x: (x.float() * 2, x.float() * 3), 2 + 4 + 4),  # the conversion stays in registers
    (lambda x: (x.float(), x.float() * 3), 2 + 4 + 4),
    (lambda x: (in_fp8(x), in_fp8(x[:ROWS // 2])), 2 + 2 + 1 + (2 + 2 + 1) / 2),
    (lambda x: (x * 2, x.mul_(2), x * 2), 2 + 2 + 2 + 2),  # x has changed
    (lambda x: (nn.functional.dropout(x), nn.functional.dropout(x)), 2 + 2 + 2),  # random
])
def test_bytes_of_fused_kernels(function, expected):
    def program():
        x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
        with torch.no_grad():
            torch.compile(function)(x)

    card = parse("h100").card
    found = run(program).busy["fused kernels"] * card.bandwidth * card.efficiency.vector
    assert found / (ROWS * WIDTH) == pytest.approx(expected, rel=0.1)


def saved_bytes(function, *shapes):
    """Bytes per element of the first input that stay allocated between the passes, compiled."""
    def program():
        leaves = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
                  for shape in shapes]
        torch.compile(function)(*leaves).sum().backward()  # GEMMs allocate workspaces
        before = torch.cuda.memory_allocated()
        out = torch.compile(function)(*leaves)
        return (torch.cuda.memory_allocated() - before - out.nbytes) / leaves[0].numel()
    return run(program, fuse=None).value


SQUARE = (WIDTH, WIDTH)


@pytest.mark.parametrize("function, shapes, expected", [
    # A chain of elementwise operations is recomputed from its input.
    (lambda x: (x.float().exp().tanh() * x).sigmoid(), [SQUARE], 0),
    # A GEMM's result is saved, and what follows it is recomputed, but not what another GEMM reads.
    (lambda x, w: (x @ w).float().exp().tanh(), [SQUARE, SQUARE], 2),
    (lambda x, w: nn.functional.gelu(x @ w) @ w, [SQUARE, SQUARE], 4),
    # The reduction's results are small; logits in 16 bits are all that cross-entropy saves.
    (lambda x, w: nn.functional.cross_entropy(
        (x @ w).float(), torch.zeros(WIDTH, dtype=torch.long, device="cuda")), [SQUARE, SQUARE], 2),
    # Two sources would take more than twice the memory of the result.
    (lambda x, w: (x @ w).exp().sum(1).exp().exp(), [SQUARE, SQUARE], 2),
])
def test_what_is_saved_for_the_backward_pass(function, shapes, expected):
    assert saved_bytes(function, *shapes) == pytest.approx(expected, abs=0.05)


def test_activation_checkpointing_inside_and_around_a_region():
    """Its hooks have precedence: nothing inside of it stays allocated."""
    def program():
        w = torch.randn(SQUARE, device="cuda", requires_grad=True)
        x = torch.randn(SQUARE, device="cuda", requires_grad=True)

        def body(x):
            return torch.tanh((x @ w).exp() @ w)

        def saved(function):
            function(x).sum().backward()
            before = torch.cuda.memory_allocated()
            out = function(x)
            held = torch.cuda.memory_allocated() - before - out.nbytes
            out.sum().backward()
            return held

        inside = torch.compile(lambda x: checkpoint(body, x, use_reentrant=False))
        region = torch.compile(body)
        return saved(inside), saved(lambda x: checkpoint(region, x, use_reentrant=False))

    assert run(program, fuse=None).value == (0, 0)


def test_a_variable_that_nothing_reads_is_not_written_again():
    def program():
        @torch.compile
        def region(x, w):
            wide = x.float().exp()
            return (wide.to(x.dtype) @ w) + 1, wide

        def named(x, w):
            wide = x.float().exp()
            y = wide.to(x.dtype) @ w
            return y + 1

        x = torch.randn(SQUARE, device="cuda", dtype=torch.bfloat16)
        times = []
        for function in (region, torch.compile(named)):
            for _ in range(2):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                function(x, x)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
        return times

    with torch.no_grad():
        first, second, unread, dropped = run(program, fuse=None).value
    assert first == pytest.approx(second) and unread == pytest.approx(first)
    card = parse("h100").card
    assert unread - dropped == pytest.approx(
        4 * WIDTH ** 2 / (card.bandwidth * card.efficiency.vector), rel=0.01)


def test_complex_numbers_are_not_fused_and_unaligned_matrices_are_padded():
    def program():
        x = torch.randn(WIDTH, WIDTH, dtype=torch.complex64, device="cuda")
        a = torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda")
        b = torch.randn(WIDTH, 2 * WIDTH + 1, dtype=torch.bfloat16, device="cuda")
        times = []
        for function, args in ((lambda x: x * x * x, (x,)), (torch.mm, (a, b))):
            for called in (function, torch.compile(function)):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                called(*args)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - begin)
        return times

    eager, compiled, unaligned, padded = run(program, fuse=None).value
    assert compiled == pytest.approx(eager)
    assert padded < 0.5 * unaligned


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


def test_a_program_may_go_on_after_it_ran_out_of_memory():
    def program():
        big = torch.empty(2**30, device="cuda", requires_grad=True)  # 4 GiB of a T4's 15
        fits = torch.compile(lambda x: x * 2)
        tried = [lambda: torch.compile(lambda x: (x.exp(), x.sin(), x.cos()))(big),
                 lambda: torch.compile(lambda x: x.exp() * x)(big).sum().backward(
                     torch.ones((), device="cuda"))]
        for function in tried:
            with pytest.raises(torch.OutOfMemoryError):
                function()
                torch.ones(2**31, device="cuda")
        small = torch.ones(4, device="cuda")
        return fits(small).tolist(), torch.cuda.max_memory_allocated()

    (rank,) = run_ranks(parse("t4"), Settings(), program)
    assert rank.error is None and rank.value[0] == [2.0] * 4


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

"""Times of operations, worked out by hand from a card's figures."""

import shlex
from dataclasses import replace

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.data.batches import Batches
from minimegatron.formulas import step_flops
from minimegatron.report.throughput import shape_of
from minimegatron.training import Trainer
from virtualgpu.core.card import Card, Efficiency
from virtualgpu.core.clock import COMPUTE, Clock, StreamSpan
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.rules import COSTS
from virtualgpu.core.rules.gemm import rate
from virtualgpu.core.rules.work import KernelWork

# Round figures: 100 TFLOP/s in fp16 and 10 in fp32, of which half and 0.8 are reached; 1 TB/s, of
# which 0.5; a kernel of 1 us, a launch of 4 us.
CARD = Card(
    name="round", product="Round", architecture="ampere", memory=2**34, bandwidth=1e12,
    tflops={"fp32": 10.0, "fp16": 100.0}, sms=100, nvlink=100e9, pcie=10e9, peer=True,
    network="ethernet:10gbit", node="dgx-a100", context=0, sources=(),
    efficiency=Efficiency(matmul={"fp32": 0.8, "fp16": 0.5}, vector=0.5, attention=0.25,
                          kernel=1e-6, dispatch=4e-6, link=0.8))
RAMP = 37  # steps of k that a tile's start and end cost, as gemm.py says


def seconds(program, card=CARD):
    """Busy time of one operation, by name; what it needs is made before."""
    with VirtualGpu(card) as gpu:
        operands = program(None)
        before = dict(gpu.busy)
        program(operands)
    return {name: busy - before.get(name, 0.0) for name, busy in gpu.busy.items()
            if busy != before.get(name, 0.0)}


def once(make, use):
    return lambda operands: make() if operands is None else use(*operands)


def meta(*shape, **how):
    return torch.empty(*shape, device="meta", **how)


def test_a_large_product_is_bound_by_arithmetic():
    """[1280, 4096] x [4096, 2560] in fp16: tiles of 256 x 128 cover it in 5 x 20 = 100, a wave."""
    (result,) = seconds(once(lambda: (meta(1280, 4096, dtype=torch.float16),
                                      meta(4096, 2560, dtype=torch.float16)), torch.mm)).values()
    per_sm = 100e12 * 0.5 / 100
    arithmetic = 2 * 256 * 128 * (4096 + RAMP) / per_sm
    bytes_moved = 2 * (1280 * 4096 + 4096 * 2560 + 1280 * 2560)
    assert arithmetic > bytes_moved / 0.5e12
    assert result == pytest.approx(arithmetic + 1e-6, rel=1e-12)


def test_a_partial_wave_costs_a_whole_one():
    full, over = (seconds(once(
        lambda m=m: (meta(m, 512, dtype=torch.float16), meta(512, 2560, dtype=torch.float16)),
        torch.mm))["aten.mm"] for m in (1280, 1280 + 256))
    assert over > 1.3 * full  # for 1.2 times the work


def test_an_elementwise_kernel_is_bound_by_memory():
    measured = seconds(once(lambda: (meta(2**24), meta(2**24)), torch.add))
    assert measured == {"aten.add": pytest.approx(3 * 4 * 2**24 / 0.5e12 + 1e-6, rel=1e-12)}


def test_a_thin_product_is_bound_by_memory():
    """A vector times a matrix reads the matrix."""
    slow = replace(CARD, bandwidth=1e11)
    measured = seconds(once(lambda: (meta(8, 16384), meta(16384, 16384)), torch.mm), slow)
    moved = 4 * (8 * 16384 + 16384**2 + 8 * 16384)
    assert measured == {"aten.mm": pytest.approx(moved / 0.5e11 + 1e-6, rel=1e-12)}


def test_tiny_kernels_go_at_the_host_s_pace():
    with VirtualGpu(CARD) as gpu:
        x = meta(16)
        for _ in range(1000):
            x = x + 1
        each = 2 * 64 / 0.5e12 + 1e-6
        assert gpu.clock.host == pytest.approx(1000 * 4e-6, rel=1e-12)
        assert sum(gpu.busy.values()) == pytest.approx(1000 * each, rel=1e-12)
        # The last one ends after its launch; the card idled between all of them.
        assert gpu.now() == pytest.approx(1000 * 4e-6 + each, rel=1e-12)


def test_long_kernels_hide_the_host():
    with VirtualGpu(CARD) as gpu:
        x = meta(2**24)
        for _ in range(100):
            x.add_(1)
        assert gpu.clock.host == pytest.approx(100 * 4e-6)
        each = 2 * 4 * 2**24 / 0.5e12 + 1e-6  # read and written
        assert gpu.now() == pytest.approx(4e-6 + 100 * each, rel=1e-12)


def test_reading_a_value_waits_and_costs():
    with VirtualGpu(CARD) as gpu:
        meta(2**24).exp()
        assert gpu.clock.host < 10e-6
        gpu.read_value()
        assert gpu.clock.host == pytest.approx(4e-6 + 2 * 4 * 2**24 / 0.5e12 + 1e-6 + 10e-6)


def test_a_type_s_own_peak():
    """The same product in fp32 and fp16: 10 x 0.8 against 100 x 0.5 TFLOP/s."""
    times = [seconds(once(lambda t=t: (meta(2560, 4096, dtype=t), meta(4096, 2560, dtype=t)),
                          torch.mm))["aten.mm"] - 1e-6 for t in (torch.float32, torch.float16)]
    assert times[0] / times[1] == pytest.approx(50 / 8, rel=1e-9)


@pytest.mark.parametrize(("m", "n", "k", "layout", "aligned"), [
    (1024, 1024, 1024, "NN", 16), (8, 8, 8, "NN", 16), (1023, 1024, 1024, "NT", 16),
    (1023, 1024, 1024, "TN", 2), (1024, 1020, 1024, "NN", 8), (1024, 1022, 1024, "NT", 4),
    (1024, 1024, 1025, "NT", 2), (1024, 1025, 1024, "NT", 2), (1, 8, 8, "NN", 16)])
def test_tensor_cores_want_rows_that_start_at_multiples_of_16_bytes(m, n, k, layout, aligned):
    """An odd m does not matter if no matrix has rows of m elements."""
    a, b = (meta(columns, rows, dtype=torch.float16).t() if how == "T" else
            meta(rows, columns, dtype=torch.float16)
            for how, rows, columns in ((layout[0], m, k), (layout[1], k, n)))
    work = COSTS["aten.mm"]((a, b), (meta(m, n, dtype=torch.float16),))
    assert work.gemm == ("fp16", 1, m, n, k, aligned)


def test_unaligned_products_are_slower_on_every_tensor_core():
    hopper, volta = (replace(CARD, architecture=name) for name in ("hopper", "volta"))
    full = 100e12 * 0.5
    assert [rate(hopper, "fp16", aligned) / full for aligned in (16, 8, 4, 2)] == [
        1, 0.34, 0.34, 0.17]
    assert rate(volta, "fp16", 2) == rate(CARD, "fp16", 2) == 0.71 * full
    assert rate(hopper, "fp32", 4) == 10e12 * 0.8


def test_an_odd_vocabulary_is_slow_in_fp16():
    even, odd = (seconds(once(lambda n=n: (meta(1024, 1024, dtype=torch.float16),
                                           meta(1024, n, dtype=torch.float16)), torch.mm)
                         )["aten.mm"] for n in (50264, 50257))
    assert 1 / 0.71 - 0.05 < odd / even < 1 / 0.71 + 0.05


def test_bytes_are_of_what_is_touched():
    rules = {name: COSTS[name] for name in ("aten.embedding", "aten.copy_", "aten.sum")}
    words, rows, result = meta(50000, 64), meta(10, dtype=torch.int64), meta(10, 64)
    assert rules["aten.embedding"]((words, rows), (result,)).bytes == 10 * 8 + 2 * 10 * 64 * 4
    half = meta(64, dtype=torch.float16)
    assert rules["aten.copy_"]((half, meta(64)), (half,)).bytes == 64 * (2 + 4)
    assert rules["aten.sum"]((words,), (meta(()),)) == KernelWork(50000 * 64 * 4 + 4, kernels=2)


def test_what_is_spread_is_read_once():
    seen = seconds(once(lambda: (meta(4096, 4096), meta(4096, 1).expand(4096, 4096)), torch.add))
    assert seen["aten.add"] == pytest.approx(4 * (2 * 4096**2 + 4096) / 0.5e12 + 1e-6, rel=1e-12)


def test_streams_overlap_and_wait():
    clock = Clock()
    clock.watcher = []
    clock.work(1.0)
    clock.run("a", 5.0)
    clock.run("send", 3.0, "link")
    clock.work(1.0)
    clock.run("b", 1.0)
    assert clock.ready() == 7.0 and clock.ready("link") == 4.0
    clock.wait(10.0)
    clock.run("c", 1.0)
    clock.wait(2.0)  # long past
    assert clock.watcher == [StreamSpan("a", COMPUTE, 1, 6), StreamSpan("send", "link", 1, 4),
                             StreamSpan("b", COMPUTE, 6, 7), StreamSpan("c", COMPUTE, 10, 11)]
    assert clock.synchronize() == clock.host == 11.0
    clock.run("d", 1.0, "link")
    assert clock.watcher[-1] == StreamSpan("d", "link", 11, 12)


FLAGS = ("--num-layers 3 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
         "--max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 6 --train-iters 9 "
         "--lr 1e-3 --data-path x --vocab-file x --merge-file x ")
RECOMPUTE = {
    None: "", "selective": "--recompute-activations",
    "full": "--recompute-granularity full --recompute-method uniform",
}


class Counting(VirtualGpu):
    flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = super().__torch_dispatch__(func, types, args, kwargs)
        rule = COSTS.get(str(func._overloadpacket))
        work = rule and out is not None and rule(args, [out] if torch.is_tensor(out) else out)
        if work and out is not None:
            self.flops += work.gemm.flops if work.gemm else work.flops
        return out


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("precision", ["", "--fp16"])
def test_flops_of_a_step_are_the_formulas(make_context, virtual_device, recompute, precision):
    virtual_device.gpu.__exit__(None, None, None)
    virtual_device.gpu = Counting(virtual_device.gpu.card)
    virtual_device.gpu.__enter__()
    config = parse_arguments(shlex.split(f"{FLAGS} {RECOMPUTE[recompute]} {precision}"), {})
    ctx = replace(make_context(), config=config, device=virtual_device)
    trainer = Trainer(ctx, vocab_size=128, started=0.0)
    data = [{"text": torch.arange(17).numpy()}] * 6
    batches = Batches(ctx, data, eod=0, name="training").step(0, 0)
    trainer.step(batches)
    by_formula = step_flops(shape_of(config, 128), 6, recompute=recompute)
    assert virtual_device.gpu.flops == by_formula


def test_what_comes_from_the_host_passes_the_bus():
    with VirtualGpu(CARD) as gpu:
        torch.zeros(1000, 1000).to("meta")
    assert gpu.busy["aten._to_copy"] == pytest.approx(4e6 / 10e9 + 1e-6)

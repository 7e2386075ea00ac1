"""Properties that hold for any program on any GPU."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from virtualgpu.core.cards import CARDS
from virtualgpu.core.clock import COMPUTE, Clock
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.rules.gemm import matmul_seconds
from virtualgpu.net import collectives, network
from virtualgpu.net.group import VirtualGroup
from virtualgpu.net.topology import Topology

from .plain_gpt import Gpt

card_names = st.sampled_from(sorted(CARDS))
factors = st.floats(1, 8)
sides = st.integers(1, 5000)


def better(card, speed=1.0, bandwidth=1.0, links=1.0):
    """The same card with more of something."""
    return replace(card, bandwidth=card.bandwidth * bandwidth,
                   tflops={name: peak * speed for name, peak in card.tflops.items()},
                   nvlink=card.nvlink * links, pcie=card.pcie * links)


def program(gpu, seed):
    """Random work on one of four ranks, the others where it is. Returns when it was over."""
    random = Random(seed)
    nodes = random.choice(("aabb", "aaaa", "abab"))
    topology = Topology(tuple(nodes), (gpu.card,) * 4, network.parse("ethernet:10gbit"))
    group = VirtualGroup(gpu, topology, [0, 1, 2, 3], 0)
    pending = []
    with gpu:
        for _ in range(30):
            m, n, k = (random.choice((1, 7, 64, 500, 1024)) for _ in range(3))
            dtype = random.choice((torch.float32, torch.float16))
            x, y = (torch.empty(*shape, device="meta", dtype=dtype) for shape in ((m, k), (k, n)))
            kind = random.choice(("product", "elementwise", "reduce", "async", "wait", "read"))
            if kind == "product":
                (x @ y).softmax(-1)
            elif kind == "elementwise":
                torch.nn.functional.gelu(x * 2).sum()
            elif kind == "reduce":
                group.allreduce([x]).wait()
            elif kind == "async":
                pending.append(group.allreduce([y]))
            elif kind == "wait" and pending:
                pending.pop(random.randrange(len(pending))).wait()
            elif kind == "read":
                gpu.read_value()
        for work in pending:
            work.wait()
    return gpu.now()


@settings(max_examples=40)
@given(card_names, factors, factors, factors, st.integers(0, 10**9))
def test_more_of_anything_never_slows(name, speed, bandwidth, links, seed):
    card = CARDS[name]
    slow = program(VirtualGpu(card), seed)
    fast = program(VirtualGpu(better(card, speed, bandwidth, links)), seed)
    assert 0 < fast <= slow * (1 + 1e-12)
    eager = replace(card, efficiency=replace(card.efficiency, dispatch=0.0, kernel=0.0))
    assert program(VirtualGpu(eager), seed) <= slow * (1 + 1e-12)


@given(card_names, st.sampled_from(("fp32", "fp16")), st.integers(1, 64), sides, sides, sides)
def test_a_product_never_beats_the_peak(name, dtype, batch, m, n, k):
    card = CARDS[name]
    seconds = matmul_seconds(card, dtype, batch, m, n, k)
    best = card.tflops[dtype] * 1e12 * card.efficiency.matmul[dtype]
    assert seconds >= 2 * batch * m * n * k / best * (1 - 1e-12)


@given(card_names, st.integers(1, 64), sides, sides, sides, factors)
def test_a_larger_product_never_takes_less(name, batch, m, n, k, speed):
    """In steps that keep 16-bit alignment; a batch, a side or the depth more."""
    card = CARDS[name]
    m, n, k = 8 * m, 8 * n, 8 * k
    seconds = matmul_seconds(card, "fp16", batch, m, n, k)
    for larger in ((batch + 1, m, n, k), (batch, m + 8, n, k), (batch, m, n + 8, k)):
        assert matmul_seconds(card, "fp16", *larger) >= seconds * (1 - 1e-12)
    assert matmul_seconds(better(card, speed), "fp16", batch, m, n, k) <= seconds * (1 + 1e-12)


def peak(batch, again, layers, width, sequence):
    with VirtualGpu(CARDS["a100-80gb"]) as gpu:
        model = Gpt(layers, 4 * width, 4, sequence, 50, again, "meta")
        tokens = torch.zeros(batch, sequence, dtype=torch.int64, device="meta")
        model(tokens, tokens).backward()
    return gpu.memory.peak, gpu.memory.peak_requested


@settings(max_examples=8)
@given(st.integers(1, 40), st.integers(1, 8), st.booleans(), st.integers(1, 3),
       st.integers(1, 64), st.integers(2, 64))
def test_a_bigger_batch_never_shrinks_the_peak(batch, more, again, layers, width, sequence):
    small = peak(batch, again, layers, width, sequence)
    large = peak(batch + more, again, layers, width, sequence)
    assert large[0] >= small[0] and large[1] > small[1]


STREAMS = st.sampled_from((COMPUTE, "a", "b"))
TIMES = st.floats(0, 1e6)
EVENTS = st.one_of(
    st.tuples(st.just("work"), TIMES), st.tuples(st.just("run"), TIMES, STREAMS),
    st.tuples(st.just("wait"), TIMES, STREAMS), st.tuples(st.just("synchronize")))


@given(st.lists(EVENTS, max_size=50))
def test_clocks_never_run_back_and_kernels_of_a_stream_never_overlap(events):
    clock = Clock()
    clock.watcher = []
    host, streams = 0.0, {}
    for kind, *arguments in events:
        if kind == "run":
            clock.run("kernel", *arguments)
        else:
            getattr(clock, kind)(*arguments)
        assert clock.host >= host
        assert all(clock.streams[name] >= time for name, time in streams.items())
        host, streams = clock.host, dict(clock.streams)
    ends = {}
    for span in clock.watcher:
        assert ends.get(span.stream, 0.0) <= span.start <= span.end
        ends[span.stream] = span.end
    assert clock.synchronize() >= max(ends.values(), default=0.0)


@settings(max_examples=20)
@given(card_names, st.integers(0, 10**9))
def test_the_same_program_takes_the_same_time(name, seed):
    first, again = (program(VirtualGpu(CARDS[name]), seed).hex() for _ in range(2))
    assert first == again


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32))
def test_a_larger_group_never_sums_faster(nodes, per_node, size):
    names = [f"n{node}" for node in range(nodes + 1) for _ in range(per_node)]
    topology = Topology(tuple(names), (CARDS["v100-sxm2-16gb"],) * len(names),
                        network.parse("ethernet:25gbit"))
    times = [collectives.all_reduce(topology.path(range(per_node * count)), size)
             for count in range(1, nodes + 2) if per_node * count > 1]
    assert all(later >= earlier * (1 - 1e-12) for earlier, later in pairwise(times))

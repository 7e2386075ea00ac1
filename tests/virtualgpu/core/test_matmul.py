"""Matrix products: waves of tiles, their start and end, and what small tiles lose."""

import math
from dataclasses import replace

import pytest
import torch

from virtualgpu.core.cards import find
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.core.kernels import add_bias
from virtualgpu.core.rules.gemm import LARGEST_AREA, QUALITY, RAMP, TILES, matmul_seconds
from virtualgpu.net.network import parse
from virtualgpu.net.topology import Topology

A100 = find("a100-80gb")
RATE = A100.tflops["fp16"] * 1e12 * A100.efficiency.matmul["fp16"]


def reached(m, n, k, batch=1):
    """The share of what large products reach."""
    return 2 * batch * m * n * k / matmul_seconds(A100, "fp16", batch, m, n, k) / RATE


def test_full_waves_of_large_tiles_lose_only_their_start_and_end():
    # 108 tiles of 256 x 128: one for each multiprocessor.
    assert reached(256 * 12, 128 * 9, 4096) == pytest.approx(4096 / (4096 + RAMP))


def test_one_tile_more_than_a_wave_takes_another_one():
    # In large tiles twice the time; smaller ones lose less of a wave, and are slower.
    whole, more = (matmul_seconds(A100, "fp16", tiles, 256, 128, 512) for tiles in (108, 109))
    areas = {rows * columns for rows, columns in TILES}
    waves = {area: math.ceil(109 * LARGEST_AREA / area / 108) for area in areas}
    best = min(waves[area] * (area / LARGEST_AREA) ** (1 - QUALITY) for area in areas)
    assert 1 < best < 2 and more / whole == pytest.approx(best)


def test_order_8192_reaches_what_was_measured():
    """230 TFLOP/s (M. Li 2022), within 3%."""
    assert reached(8192, 8192, 8192) * RATE == pytest.approx(230e12, rel=0.03)


def test_a_host_that_keeps_no_lead_sets_the_pace():
    slow = VirtualGpu(replace(A100, efficiency=replace(A100.efficiency, pace=30e-6)))
    with slow:
        x = torch.empty(16, device="meta")
        before = slow.now()
        for _ in range(10):
            x.add_(1)
        assert slow.now() - before >= 10 * 30e-6
        large = torch.empty(2**30, device="meta")
        before = slow.now()
        large.add_(1)
        bandwidth = A100.bandwidth * A100.efficiency.vector
        assert slow.now() - before == pytest.approx(2 * 4 * 2**30 / bandwidth, rel=1e-2)


def test_a_bias_joins_the_next_kernel_and_its_gradient_is_a_sum():
    gpu = VirtualGpu(A100)
    with gpu:
        x = torch.empty(64, 2, 32, device="meta", requires_grad=True)
        bias = torch.empty(32, device="meta", requires_grad=True)
        y = x * 1.0
        live, time = gpu.memory.live, gpu.clock.ready()
        z = add_bias(y, bias)
        assert (gpu.memory.live, gpu.clock.ready()) == (live, time) and z.shape == x.shape
        z.sum().backward()
    assert bias.grad.shape == bias.shape and x.grad.shape == x.shape


def test_a_point_to_point_send_has_its_share_of_nvlink_and_none_of_the_network():
    half = replace(A100, efficiency=replace(A100.efficiency, p2p=0.5))
    fast, slow = (Topology(("a", "a", "b"), (card,) * 3, parse("ethernet:25gbit"))
                  for card in (A100, half))
    assert slow.p2p_path(0, 1).bandwidth == fast.p2p_path(0, 1).bandwidth / 2
    assert slow.path((0, 1)).bandwidth == fast.path((0, 1)).bandwidth
    assert slow.p2p_path(1, 2) == fast.p2p_path(1, 2) == fast.path((1, 2))


@pytest.mark.parametrize(("left", "right", "result", "inner"), [
    ((64, 32), (4, 32, 48), (64, 48), 32),  # experts: their tokens are rows of the first matrix
    ((32, 64), (64, 48), (4, 32, 48), 16),  # and the inner dimension of the weights' gradients
    ((4, 16, 32), (4, 32, 48), (4, 16, 48), 32)])
def test_a_grouped_gemm_is_one_gemm_per_group(left, right, result, inner):
    a, b = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in (left, right))
    starts = torch.empty(4, dtype=torch.int32, device="meta") if len(left) == 2 else None
    with VirtualGpu(A100) as gpu:
        out = torch._grouped_mm(a, b.transpose(-2, -1).contiguous().transpose(-2, -1), starts)
    gemm, = (plan.work.gemm for plan in gpu._plans.values() if plan.work and plan.work.gemm)
    assert out.shape == result and not gpu.unknown
    assert (gemm.batch, gemm.k) == (4, inner)
    assert gemm.flops == 2 * 64 * 32 * 48

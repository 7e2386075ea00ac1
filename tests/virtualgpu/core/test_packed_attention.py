"""Attention over sequences of any length: what a mask leaves, and what the kernel costs."""

import pytest
import torch

from tests.virtualgpu.core.counted import HALF, meta, works
from virtualgpu.core.rules.attention import clamped_sum, visible_pairs
from virtualgpu.pytorch.package_values import visible

run = torch.ops.virtualgpu
WINDOWS = [(-1, -1), (-1, 0), (3, 0), (2, 1), (-1, 2), (0, 0)]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (6, 6), (5, 9), (9, 5), (7, 0)])
def test_pairs_are_those_that_the_mask_leaves(rows, columns, window):
    left = visible(rows, columns, window).sum().item()
    diagonal = min(rows, columns) // 2 if window[1] == 0 else 0
    assert visible_pairs(rows, columns, window) == left - diagonal


@pytest.mark.parametrize(("first", "count", "largest"), [(-3, 10, 4), (2, 3, 9), (5, 4, 2),
                                                         (-9, 4, 3), (0, 0, 5)])
def test_clamped_sum(first, count, largest):
    numbers = range(first, first + count)
    assert clamped_sum(first, count, largest) == sum(min(max(n, 0), largest) for n in numbers)


def both(causal, backward, heads=8):
    """The work of FlashAttention through scaled_dot_product_attention, and through packages."""
    query, key = meta(2, 4096, 8, 128, dtype=HALF), meta(2, 4096, heads, 128, dtype=HALF)
    options = [4096] * 2, [4096] * 2, [-1, 0 if causal else -1], 0.1, 0.0, 0.0, "flash"
    swapped = [one.transpose(1, 2) for one in (query, key, key)]
    aten, sums = torch.ops.aten, meta(2, 8, 4096)

    def program():
        if not backward:
            aten._scaled_dot_product_flash_attention(*swapped, 0.0, causal)
            run.packed_attention(query, key, key, *options)
            return
        empty = meta(0, dtype=torch.int64)
        aten._scaled_dot_product_flash_attention_backward(
            swapped[0], *swapped, swapped[0], sums, empty, empty, 4096, 4096, 0.0, causal, empty,
            empty)
        run.packed_attention_backward(query, query, key, key, query, sums, *options)

    return works(program).values()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_costs_are_those_of_scaled_dot_product_attention(causal, backward):
    one, other = both(causal, backward)
    assert (one.flops, one.attention, one.dtype) == (other.flops, other.attention, other.dtype)
    assert other.bytes == pytest.approx(one.bytes, rel=0.01)


def test_a_short_part_of_a_key_cache_costs_what_is_read_of_it():
    query, cache = meta(4, 1, 32, 128, dtype=HALF), meta(4, 8192, 8, 128, dtype=HALF)

    def work(tokens):
        options = [1] * 4, [tokens] * 4, [-1, 0], 0.1, 0.0, 0.0, "flash"
        return works(lambda: run.packed_attention(query, cache, cache, *options))[
            "virtualgpu.packed_attention"]

    assert work(2048).bytes - work(1024).bytes == 4 * 1024 * 2 * 8 * 128 * 2


def test_blocks_cost_the_pairs_that_are_computed():
    x = meta(2, 8, 1024, 64, dtype=HALF)
    work = works(lambda: run.block_attention(x, x, x, 1024 * 256))["virtualgpu.block_attention"]
    assert work.flops == 2 * 2 * 2 * 8 * 1024 * 256 * 64


@pytest.mark.parametrize(("rows", "columns", "kernel"), [
    ([9], [8], "flash"), ([4, 4], [8], "flash"), ([8], [8], "other")])
def test_lengths_that_do_not_fit_are_refused(rows, columns, kernel):
    x = meta(8, 2, 16, dtype=HALF)
    with pytest.raises(RuntimeError):
        works(lambda: run.packed_attention(x, x, x, rows, columns, [-1, -1], 0.1, 0.0, 0.0, kernel))

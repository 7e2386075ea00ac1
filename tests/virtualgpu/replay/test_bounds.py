"""Lower bounds on made-up figures: only FLOPs in the task's dtype, or in a slower one, count."""

from __future__ import annotations

import dataclasses

import pytest

from virtualgpu.replay import Priced, TooLittle, require


def figures(**flops: int) -> Priced:
    return Priced(0, 1.0, {}, {}, {}, 1, 1, 1, flops, 1, {"2": 1}, {}, 0.0, 0, {}, 0)


@pytest.mark.parametrize(("flops", "dtype"), [
    ({"fp32": 10}, "fp32"), ({"fp64": 4, "fp32": 6}, "fp32"), ({"bf16": 10}, "bf16"),
    ({"fp16": 10}, "bf16"), ({"fp32": 10}, "fp8"), ({"tf32": 4, "bf16": 6}, "fp16")])
def test_flops_in_the_dtype_and_in_slower_ones_count(flops, dtype):
    require([figures(**flops)], flops=10, dtype=dtype)
    assert figures(**flops).flops == 10


@pytest.mark.parametrize(("flops", "dtype"), [
    ({"bf16": 99}, "fp32"), ({"tf32": 99}, "fp32"), ({"fp32": 9, "bf16": 99}, "fp32"),
    ({"fp8": 99}, "bf16"), ({"fp16": 99}, "tf32"), ({}, "fp8")])
def test_flops_in_a_faster_dtype_do_not_count(flops, dtype):
    result = sum(count for name, count in flops.items() if name == "fp32")
    with pytest.raises(TooLittle, match=rf"rank 0: {result} FLOPs in {dtype} or higher precision, "
                                        "at least 10 are needed"):
        require([figures(**flops)], flops=10, dtype=dtype)


def test_flops_are_in_fp32_unless_a_dtype_is_named():
    with pytest.raises(TooLittle, match="0 FLOPs in fp32"):
        require([figures(bf16=99)], flops=10)
    with pytest.raises(ValueError, match="dtype 'int8': expected one of fp64, fp32, tf32, bf16"):
        require([figures(bf16=99)], flops=10, dtype="int8")


def test_communication_counts_only_in_groups_that_are_large_enough():
    priced = dataclasses.replace(figures(), communicated_by_ranks={"1": 99, "8": 10, "32": 5})
    assert (priced.communicated, priced.communicated_among(9)) == (15, 5)
    require([priced], communicated=15)
    with pytest.raises(TooLittle, match="5 bytes communicated in groups of at least 32 ranks, at "
                                        "least 6 are needed"):
        require([priced], communicated=6, among=32)

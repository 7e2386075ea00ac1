"""Optimizer state in host memory: the same training and the same checkpoints, and its flags.

Its time and memory are in tests/virtualgpu/test_trainer_offload.py.
"""

import pytest

from minimegatron.errors import UserError
from minimegatron.offload import cut
from minimegatron.parallel.ddp import BufferRange, length
from warmranks import run_ranks

from . import layout_steps, resume_steps
from .test_layouts import HYBRID, OVERLAPS, PP2, Z1, Z2, Z3
from .test_sharding import config_of

OFFLOAD = "--optimizer-cpu-offload"
SOME = f"{OFFLOAD} --optimizer-offload-fraction 0.4 --overlap-cpu-optimizer-d2h-h2d"
FP16 = "--fp16 --initial-loss-scale 256"
CASES = ["--bf16", f"{Z1} {FP16} poison", Z3]
MORE = ["", f"{FP16} poison", f"{Z2} --bf16 {OVERLAPS}", f"{Z3} {FP16} {OVERLAPS} poison",
        f"{Z1} {OVERLAPS} {HYBRID} --bf16", f"{PP2} {Z2} --bf16", f"{PP2} --schedule zb-h1 {FP16}",
        f"{Z1} --tensor-model-parallel-size 2 --sequence-parallel --bf16",
        f"{Z1} --clip-grad 0 --bf16", f"{Z3} --accumulate-allreduce-grads-in-fp32 {FP16}"]


def assert_same(cases, ranks, offloads=(SOME, OFFLOAD)):
    pairs = [(case, f"{case} {offload}") for case in cases for offload in offloads]
    runs = list(dict.fromkeys(one for pair in pairs for one in pair))
    results = run_ranks(layout_steps.run, ranks, 3, runs, backend=None, timeout=500)
    for rank in results:
        seen = dict(zip(runs, rank, strict=True))
        for plain, offloaded in pairs:
            assert seen[offloaded] == seen[plain], offloaded


def test_training_is_the_same_to_the_last_bit():
    """In 16 bits and fp32, with sharding, clipping, and a step that overflows."""
    assert_same(CASES, 2, [SOME])


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_training_is_the_same_in_other_layouts():
    assert_same([*CASES, *MORE], 4)


@pytest.mark.slow
@pytest.mark.parametrize("cases, ranks", [
    ({f"--bf16 {SOME}": ["--bf16"], "--bf16": [f"{Z1} --bf16 {OFFLOAD}"]}, 2),
    pytest.param({f"{Z3} {SOME}": ["", Z2], f"{Z1} {OFFLOAD} --bf16": [f"{Z3} --bf16 {SOME}"]}, 4,
                 marks=pytest.mark.stress)])
def test_a_checkpoint_loads_with_and_without_offloading(cases, ranks, tmp_path):
    results = run_ranks(resume_steps.run, ranks, str(tmp_path), list(cases.items()), timeout=500)
    for rank in results:
        for whole, resumed in rank:
            for one in resumed:
                assert one["saved"] == whole["saved"] != one["after"]
                assert one["loss and norm"] == pytest.approx(whole["loss and norm"], rel=4e-3)


def test_the_two_parts_cover_each_range_once():
    spans = [(0, 5), (5, 12), (14, 20)]
    ranges = [BufferRange(slice(*span), slice(*span), slice(100 + span[0], 100 + span[1]), None,
                          True, False) for span in spans]
    for first in range(21):
        parts = [*cut(ranges, 0, first), *cut(ranges, first, 20)]
        elements = [at for part in parts for at in range(part.shard.start, part.shard.stop)]
        assert elements == [at for span in spans for at in range(*span)]
        for part in parts:
            assert length(part.shard) == length(part.grads) == length(part.params)
            assert part.params.start - part.grads.start == 100


@pytest.mark.parametrize("flags, why", [
    ("--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction belongs to .* nearest: "
     "--optimizer-cpu-offload --optimizer-offload-fraction"),
    (f"{OFFLOAD} --optimizer-offload-fraction 1.5", "must be from 0 to 1"),
    (f"{OFFLOAD} --optimizer-offload-fraction -0.5", "must be from 0 to 1"),
    ("--overlap-cpu-optimizer-d2h-h2d", "belongs to --optimizer-cpu-offload"),
    (f"{OFFLOAD} --exp-avg-dtype bf16", "Adam with fp32 state")])
def test_wrong_flags_are_refused_by_name(flags, why):
    with pytest.raises(UserError, match=why):
        config_of(flags)


def test_megatron_s_flag_of_precision_is_accepted_along_with_it():
    config = config_of(f"{OFFLOAD} --use-precision-aware-optimizer")
    assert config.offloaded_fraction == 1.0 and config_of("").offloaded_fraction == 0.0

"""No record ends the process that reads it, whatever it names: torch runs none of its operations.

A record is forged in a sandbox, and read next to the expected values. Torch's C++ code checks less
than it should: `_foreach_copy` with lists of different lengths reads past the shorter one.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import pytest

from virtualgpu.replay import BadRecord, read_record

from .mutations import mutated, sound
from .recorded import by_hand, priced
from .test_reading import called, laid_out

HUGE = 2**40
LONG = [[4, 4]] * 1000
SECONDS, MEMORY = 60, 4 << 30  # of processor time, and bytes of a child's memory, imports included
HOSTILE = {
    "copy-unequal": called("_foreach_copy_.default", tuple(LONG), ([4, 4],)),
    "copy-empty": called("_foreach_copy_.default", tuple(LONG), ()),
    "add-unequal": called("_foreach_add_.List", tuple(LONG), ([4, 4],)),
    "lerp-unequal": called("_foreach_lerp_.List", tuple(LONG), ([4, 4],), ([4, 4],)),
    "addcdiv-unequal": called("_foreach_addcdiv_.Scalar", tuple(LONG), ([4, 4],), ()),
    "pow-unequal": called("_foreach_pow_.List", tuple(LONG), ()),
    "adam-unequal": called("_fused_adam_.default", tuple(LONG), ([4, 4],), (), (), (), ([1],), **{
        name: {"float": True} for name in ("lr", "beta1", "beta2", "weight_decay", "eps")},
        amsgrad=True, maximize=False),
    "sgd-unequal": called("_fused_sgd_.default", tuple(LONG), ([4, 4],), ([1],), **{
        name: {"float": True} for name in ("weight_decay", "momentum", "lr", "dampening")},
        nesterov=False, maximize=False, is_first_step=False),
    "unscale": called("_amp_foreach_non_finite_check_and_unscale_.default", (), [7], [9]),
    "foreach-copy": called("_foreach_copy.default", ([4, 4],) * 3, tuple(LONG)),
    "foreach-copy-shorter": called("_foreach_copy.default", tuple(LONG), ([4, 4],)),
    "strided": called("as_strided_scatter.default", [4], [4], (HUGE,), (1,), -HUGE, fresh=[[4]]),
    "resized": called("resize.default", [4], (HUGE,) * 8, fresh=[[4]]),
    "padding": called("convolution.default", [1, 3, 8, 8], [4, 3, 3, 3], None, (1, 1),
                      (2**62, 2**62), (1, 1), False, (0, 0), 1, fresh=[[1, 4, 6, 6]]),
    "dilation": called("convolution.default", [1, 3, 8, 8], [4, 3, 3, 3], None, (0, 0),
                       (0, 0), (-2**62, 0), True, (2**62, 0), 0, fresh=[[1, 4, 6, 6]]),
    "pooling": called("max_pool2d_with_indices.default", [1, 1, 8, 8], (2**62, 0), (0, 0),
                      fresh=[[1, 1, 1, 1], [1, 1, 1, 1]]),
    "indices": called("index.Tensor", [4], (laid_out([4], "int64"),) * 20_000,
                      fresh=[[4]]),
    "splits": called("unsafe_split.Tensor", [2**50], 1, fresh=[[1]]),
    "names": called("cat.default", ([1],) * 20_000, 2**62, fresh=[[20_000]]),
    "repeats": called("repeat.default", [2], (2**62,) * 20_000, fresh=[[2]]),
    "groups": called("native_group_norm.default", [1, 4, 2], None, None, 1, 4, 2, 0,
                     {"float": True}, fresh=[[1, 4, 2], [1, 0], [1, 0]]),
    "rnn": called("_cudnn_rnn.default", [1], ([1],), 0, None, [1], None, 2, HUGE, 0, HUGE, False,
                  {"float": True}, True, True, (), None, fresh=[[1]]),
}


def in_a_child(work: Callable[[], int]) -> int:
    """Return how a fork of this process ended: an exit code, or minus a signal."""
    child = os.fork()
    if not child:
        code = 3
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", HOSTILE)
def test_no_operation_ends_the_process(name):
    text = by_hand(0, operations=[HOSTILE[name]])

    def work() -> int:
        try:
            read_record(text)
        except BadRecord:
            return 0
        return 1

    assert in_a_child(work) == 0


def fuzz(seeds: range) -> None:
    """Price mutated records in a child: it raises BadRecord or nothing, and is not ended."""
    sound()  # recorded here, once
    reading, writing = os.pipe()

    def work() -> int:
        refused = 0
        for seed in seeds:
            os.write(writing, f"{seed} ".encode())
            try:
                priced(mutated(seed))
            except BadRecord as error:
                refused += 1
                assert str(error)
        os.write(writing, f"refused {refused}".encode())
        return 0

    code = in_a_child(work)
    os.close(writing)
    progress = os.read(reading, 2**20).decode()
    os.close(reading)
    assert code == 0, f"exit code {code} at seed {progress.split()[-1]}"
    refused = int(progress.split()[-1])
    assert len(seeds) / 2 < refused < len(seeds)  # and some changes do not matter
    print(f"{len(seeds)} mutated records, {refused} refused")


@pytest.mark.slow
def test_mutated_records_are_refused_or_priced():
    fuzz(range(300))


@pytest.mark.stress
def test_ten_thousand_mutated_records_are_refused_or_priced():
    for start in range(0, 10_000, 500):
        fuzz(range(start, start + 500))

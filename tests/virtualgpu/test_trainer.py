"""The trainer on virtual cards, as its users start it."""

import re

import pytest

from minimegatron.report import timeline

ITERATIONS = ("--device virtual:v100 --train-iters 3 --log-interval 1 --eval-iters 0 "
              "--global-batch-size 8 ")


def test_a_run_shows_times_and_memory_and_nothing_learned(train):
    run = train(ITERATIONS, ranks=2)
    lines = [line for line in run.out.splitlines() if line.startswith(" iteration")]
    assert len(lines) == 3
    for line in lines:
        assert line.endswith(" virtual v100-sxm2-16gb |")
        assert "lm loss" not in line and "grad norm" not in line and "nan iterations:   0" in line
    assert run.column("elapsed time per iteration (ms)")[1] > 0
    (memory,) = [line for line in run.out.splitlines() if "memory (MB)" in line]
    match = re.search(r"\| allocated: (.*) \| max allocated: (.*) \| reserved: (\S+)", memory)
    allocated, peak, reserved = map(float, match.groups())
    assert 0 < allocated < peak <= reserved and memory.endswith("| virtual v100-sxm2-16gb")
    assert ("using virtual v100-sxm2-16gb (Tesla V100-SXM2-16GB, 15.78 GiB, 900 GB/s) "
            "on rank(s) 0,1\n") in run.out
    assert ("virtual links: within a node NVLink 25 GB/s; times and memory are modeled; no "
            "training happens: tensors have shapes but no values") in run.out
    assert "without a cost rule" not in run.out


@pytest.mark.slow
def test_everything_that_a_run_may_write_on_two_stages(train, tmp_path):
    """Values that are not there are left out; figures that are modeled are said to be."""
    run = train(
        "--device virtual:a100 --bf16 --pipeline-model-parallel-size 2 --schedule zb-h1 "
        "--global-batch-size 8 --train-iters 4 --log-interval 2 --eval-iters 1 --eval-interval 2 "
        f"--save {tmp_path}/saved --save-interval 2 --tensorboard-dir {tmp_path}/board "
        f"--timeline {tmp_path}/timeline --timeline-iteration 2 --log-throughput "
        "--log-num-zeros-in-grad --log-params-norm --log-memory-to-tensorboard "
        "--log-timers-to-tensorboard --timing-log-level 2", ranks=2)
    for absent in ("lm loss", "grad norm", "num zeros", "params norm", "validation loss",
                   "without a cost rule"):
        assert absent not in run.out, absent
    assert len(run.column("elapsed time per iteration (ms)")) == 2
    assert "data-sheet peak (virtual a100-80gb, bf16, 312" in run.out
    assert ("no checkpoint is saved at iteration 2: weights on a virtual a100-80gb have no "
            "values") in run.out
    assert not list(tmp_path.glob("saved/*"))
    recorded = timeline.read(tmp_path / "timeline" / timeline.FILE)
    assert set(recorded.spans) == {0, 1} and 0 < recorded.bubble_fraction < 0.5
    assert list(tmp_path.glob("board/**/events.*"))

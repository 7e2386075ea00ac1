"""The trainer on virtual cards, as its users start it."""

import re

ITERATIONS = ("--device virtual:v100 --train-iters 3 --log-interval 1 --eval-iters 0 "
              "--global-batch-size 8 ")


def test_a_run_shows_times_and_memory_and_nothing_learnt(pretrain):
    run = pretrain(ITERATIONS, ranks=2)
    lines = [line for line in run.out.splitlines() if line.startswith(" iteration")]
    assert len(lines) == 3
    for line in lines:
        assert line.endswith(" virtual v100-sxm2-16gb |")
        assert "lm loss" not in line and "grad norm" not in line and "nan iterations:   0" in line
    assert run.column("elapsed time per iteration (ms)")[1] > 0
    (memory,) = [line for line in run.out.splitlines() if "memory (MB)" in line]
    found = re.search(r"\| allocated: (.*) \| max allocated: (.*) \| reserved: (\S+)", memory)
    allocated, peak, reserved = map(float, found.groups())
    assert 0 < allocated < peak <= reserved and memory.endswith("| virtual v100-sxm2-16gb")
    assert ("using virtual v100-sxm2-16gb (Tesla V100-SXM2-16GB, 15.78 GiB, 900 GB/s) "
            "on rank(s) 0,1\n") in run.out
    assert "virtual links: within a node NVLink 150 GB/s; times and memory are modelled" in run.out
    assert "without a cost rule" not in run.out

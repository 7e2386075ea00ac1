"""The same trainer code runs where tensors have shapes and no values."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import MODEL

PROGRAM = Path(__file__).with_name("virtual_step.py")


def test_a_data_parallel_step_on_meta_tensors():
    flags = (MODEL + "--train-iters 1 --log-interval 1 --global-batch-size 8 --data-path x "
             "--vocab-file x --merge-file x").split()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
               "--master_port", str(20001 + os.getpid() % 10000), str(PROGRAM), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(r["rank"] for r in ranks) == [0, 1]
    for rank in ranks:
        assert rank["control"] == 3.0
        assert rank["loss"] is None and rank["loss_is_meta"] and rank["norm_is_meta"]
        assert rank["steps"] == 1
        # The gradients once, and the loss of the one step that the log line shows.
        assert rank["sent"] == 4 * rank["parameters"] + 4
        # Both leave the all-reduce together: the early rank waited for the late one.
        assert rank["clock"] == pytest.approx(1.0 + rank["sent"] * 1e-9, rel=1e-12)
    (line,) = [text for text in done.stdout.splitlines() if text.startswith(" iteration")]
    assert "lm loss" not in line and "grad norm" not in line
    assert "elapsed time per iteration (ms): 1000.2" in line

"""torchrun and srun start one virtualrun per rank; none leaves errors of the store behind."""

import os
import re
import socket
import subprocess
import sys

import pytest

from .running import SCRIPTS

pytestmark = pytest.mark.stress  # every rank imports torch by itself

PATIENCE = 300  # seconds of real time; a busy machine is no failure
DDP = ["-m", "virtualgpu.run", "--gpus", "h100:2", str(SCRIPTS / "ddp.py"), "plain", "64"]


def expect_two_ranks(text, error):
    """Both ranks have the same parameters; there is one report, and no noise from the store."""
    assert len(re.findall(r"step 2 loss \d", text)) == 1
    one, other = re.findall(r"tensor\(\[(\S+)\]", text)
    assert one == other
    assert error.count("virtualrun: 2 x virtual h100-80gb") == 1, error
    assert "Broken pipe" not in error and "sendBytes" not in error, error


def test_under_torchrun():
    ended = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2",
         *DDP], text=True, capture_output=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stderr
    expect_two_ranks(ended.stdout, ended.stderr)


def test_with_srun_s_environment():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    step = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2",
            "SLURM_STEP_NODELIST": "localhost", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port)}
    ranks = [subprocess.Popen(
        [sys.executable, *DDP], env={**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        said = [rank.communicate(timeout=PATIENCE) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    texts, errors = map("".join, zip(*said, strict=True))
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    expect_two_ranks(texts, errors)

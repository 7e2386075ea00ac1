"""GPT-2 small on two nodes of two V100s each, profiled: one run for all who look at its traces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from labcore.workspace import CODE
from tests.minimegatron.conftest import Dataset
from tests.ports import free_port

GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 32 "
        "--seq-length 1024 --max-position-embeddings 1024 --make-vocab-size-divisible-by 50304 "
        "--micro-batch-size 2 --lr 1e-4 --log-interval 1 --eval-iters 0 --split 900,50,50 ")
PROFILE = "--profile-execution yes --profile-name gpt2 "
MADE: list[Path] = []  # pytest takes a fixture that two modules import for two


@pytest.fixture(scope="session")
def traced(dataset: Dataset, tmp_path_factory) -> Path:
    """The folder with what the four ranks wrote (run_gpt2), and the log of the last one."""
    if not MADE:
        MADE.append(run(dataset, tmp_path_factory.mktemp("traced")))
    return MADE[0]


def run(dataset: Dataset, folder: Path) -> Path:
    flags = (GPT2 + PROFILE + dataset.flags + "--train-iters 5 --virtual-network ethernet:25gbit "
             f"--tensorboard-dir {folder}").split()
    port = str(free_port())
    nodes = [subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(node),
         "--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", port,
         str(CODE / "pretrain_gpt.py"), *flags],
        env={**os.environ, "SLURMD_NODENAME": f"node{node}", "OMP_NUM_THREADS": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE) for node in (0, 1)]
    for node, process in enumerate(nodes):
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, out[-2000:] + err[-3000:]
        (folder / f"node{node}.txt").write_text(out)
    return folder

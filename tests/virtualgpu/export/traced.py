"""GPT-2 small on two nodes of two V100s each, profiled."""

from __future__ import annotations

import os
from pathlib import Path

from labcore.workspace import CODE
from pretrain_gpt import main
from tests.minimegatron.conftest import Dataset
from warmranks import run_program

GPT2 = ("--device virtual:v100 --num-layers 12 --hidden-size 768 --num-attention-heads 12 "
        "--seq-length 1024 --max-position-embeddings 1024 --make-vocab-size-divisible-by 50304 "
        "--micro-batch-size 2 --lr 1e-4 --log-interval 1 --eval-iters 0 --split 900,50,50 ")
PROFILE = "--profile-execution yes --profile-name gpt2 "


def run(dataset: Dataset, folder: Path, more: str = "") -> Path:
    """Return the folder with what the four ranks wrote (run_gpt2), and each node's log.

    Args:
        dataset: the text.
        folder: receives them.
        more: flags that come last.
    """
    flags = (GPT2 + PROFILE + dataset.flags + "--train-iters 5 --virtual-network ethernet:25gbit "
             f"--tensorboard-dir {folder} {more}").split()
    done = run_program(on_its_node, [str(CODE / "pretrain_gpt.py"), *flags], ranks=4, cwd=folder,
                       timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def on_its_node() -> None:
    """Be one rank of two on one of two nodes, as torchrun and Slurm would set it up."""
    node, local_rank = divmod(int(os.environ["RANK"]), 2)
    os.environ |= {"SLURMD_NODENAME": f"node{node}", "GROUP_RANK": str(node),
                   "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": "2"}
    os.dup2(os.open(f"node{node}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
    main()

"""Real time that virtual GPUs take: an iteration of GPT-2 small, a rank's start, a job, a plan.

python benchmarks/virtual_speed.py
eval "$(lab cluster env)"; python benchmarks/virtual_speed.py --job    (needs `lab start`)

Medians of 5. An iteration is a single rank's: micro-batch 2, fp32, materialized attention.
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import slurmbox as cluster
from labcore import shipping, workspace
from minimegatron.arguments import parse_arguments
from minimegatron.data.batches import Batches
from minimegatron.initialize import initialize
from minimegatron.training import Trainer

GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --lr 1e-4 --train-iters 1 --micro-batch-size 2")
NO_DATA = "--data-path none --vocab-file none --merge-file none"
VOCABULARY = 50304
# What a rank imports and builds before its first step.
START = ("from minimegatron.initialize import initialize\n"
         "from minimegatron.training import Trainer\n"
         "from minimegatron.arguments import parse_arguments\n"
         f"ctx = initialize(parse_arguments('{GPT2} {NO_DATA} --device virtual:v100'.split()))\n"
         f"Trainer(ctx, {VOCABULARY}, 0.0)\n")
TRILLION = ("--estimate --device virtual:a100-80gb --world-size 3072 --num-layers 128 "
            "--hidden-size 25600 --num-attention-heads 160 --seq-length 2048 "
            "--max-position-embeddings 2048 --vocab-size 51200 --micro-batch-size 1 "
            "--global-batch-size 3072 --tensor-model-parallel-size 8 "
            "--pipeline-model-parallel-size 64 --fp16 --recompute-granularity full "
            "--recompute-method uniform")
ROUNDS = 5


def iteration_seconds() -> list[float]:
    """Real seconds of iterations after the first, in which operations are planned."""
    ctx = initialize(parse_arguments(shlex.split(f"{GPT2} {NO_DATA} --device virtual:v100")))
    trainer = Trainer(ctx, VOCABULARY, time.perf_counter())
    batches = Batches(ctx, [{"text": np.arange(1025)}] * 2, 0, "training")
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        trainer.step(batches.step(0, 0))
        times.append(time.perf_counter() - start)
    return times[1:]


def start_seconds() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", START], check=True, capture_output=True)
    return time.perf_counter() - start


def trillion() -> tuple[float, float]:
    """Seconds and GB of --estimate for a trillion parameters on 3,072 cards."""
    program = Path(__file__).resolve().parent.parent / "code" / "pretrain_gpt.py"
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, program, *TRILLION.split()],
                               stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{program} {TRILLION}: failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1e6


def job_seconds() -> float:
    """From sbatch to the end of virtual_v100.sh: 4 ranks, 2 nodes, 20 iterations."""
    home = workspace.home()
    start = time.perf_counter()
    subprocess.run(["sbatch", "--wait", "code/virtual_v100.sh"], cwd=home, check=True,
                   env=cluster.environment(home), capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", action="store_true", help="time the Slurm job too")
    arguments = parser.parse_args()
    measured = {"an iteration of GPT-2 small": iteration_seconds(),
                "a rank's start": [start_seconds() for _ in range(ROUNDS)]}
    if arguments.job:
        shipping.make_workspace(workspace.home())
        measured["a job of 4 ranks and 20 iterations"] = [job_seconds() for _ in range(ROUNDS)]
    for what, times in measured.items():
        print(f"{what}: {statistics.median(times):.3f} s, median of "
              f"{', '.join(f'{seconds:.3f}' for seconds in times)}")
    print("--estimate of 1T parameters on 3,072 cards: {:.1f} s, {:.2f} GB".format(*trillion()))


if __name__ == "__main__":
    main()

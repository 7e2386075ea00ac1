"""Ranks per node that the shipped scripts for virtual GPUs start."""

import os
import subprocess

import pytest

from labcore.workspace import CODE

SCRIPTS = sorted(script for script in (CODE / "jobs").glob("*.sh")
                 if "--device virtual" in script.read_text())


@pytest.fixture
def ranks_per_node(tmp_path):
    """Return what a script passes to torchrun, with srun and scontrol replaced by echo."""
    for name in ("srun", "scontrol"):
        program = tmp_path / name
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)

    def run(script, **variables):
        job = {"SLURM_JOB_NAME": "job", "SLURM_CPUS_PER_TASK": "2", "SLURM_JOB_ID": "7",
               "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node1,node2", "LAB_HOME": "/home/ada"}
        done = subprocess.run(["bash", script], capture_output=True, text=True, timeout=20,
                              env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **job, **variables})
        assert done.returncode == 0, done.stderr
        return done.stdout.split("--nproc_per_node ")[1].split()[0]

    return run


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_each_gpu_gets_a_rank_and_a_node_without_gpus_gets_two(script, ranks_per_node):
    assert ranks_per_node(script, SLURM_GPUS_ON_NODE="4") == "4"
    assert ranks_per_node(script) == "2"


def test_a_site_without_gpus_can_start_a_single_rank(ranks_per_node):
    assert ranks_per_node(CODE / "jobs" / "gpt2_small.sh", RANKS="1") == "1"

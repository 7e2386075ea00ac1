"""A cluster's folder with rank files in it, without a cluster."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from job_monitor.nvidia_smi import cli
from slurmbox import profile

MIB = 2**20


@dataclass
class Cluster:
    """The files that nvidia-smi reads, and the command that reads them."""

    state: Path
    proc: Path
    ranks: int = field(default=0)

    def rank(self, job, gpu, node="slurmnode1", alive=True, **fields):
        """A rank that computes; returns its PID."""
        self.ranks += 1
        pid = 1000 + self.ranks
        fields = {
            "node": node, "job": str(job), "gpu": gpu, "slot": None, "pid": pid,
            "card": "v100-sxm2-16gb", "memory_used": 1500 * MIB, "memory_total": 16160 * MIB,
            "utilization": 0.424, "state": "training"} | fields
        folder = self.state / "ranks" / str(job)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.ranks}.json").write_text(json.dumps(fields))
        if alive:
            (self.proc / str(pid)).mkdir()
            (self.proc / str(pid) / "environ").write_bytes(f"A=b\0SLURM_JOB_ID={job}\0".encode())
        return pid

    def look(self, node="slurmnode1"):
        """{number: (job, index for the job)} of a node's cards in use."""
        gpus = cli.query_gpus(self.state, self.proc, None)[node]
        return {gpu.number: (gpu.process.job, gpu.process.local) for gpu in gpus if gpu.process}

    def main(self, *words):
        return cli.main(self.state, self.proc, words)

    def csv(self, capsys, fields, *words):
        """The rows of a query, as lists of values."""
        assert self.main(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *words) == 0
        return [line.split(", ") for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def make(tmp_path, monkeypatch):
    for name in ("SLURMD_NODENAME", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE",
                 "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)

    def make(gpus="v100:2", nodes=2, link=None, **more):
        state, proc = tmp_path / ".cluster", tmp_path / "proc"
        state.mkdir()
        proc.mkdir()
        wanted = profile.make(nodes, gpus, link, **more).to_json()
        (state / "running.json").write_text(json.dumps(
            {"profile": wanted, "place": {"mode": "namespaces"}}))
        return Cluster(state, proc)

    return make


@pytest.fixture
def cluster(make):
    return make()

"""Logs and rank files of jobs that went well or wrong, as the trainer and Slurm write them."""

from __future__ import annotations

import json
from pathlib import Path

from job_monitor import ranks, requested, snapshot
from job_monitor.components import SlurmJob
from job_monitor.snapshot import Snapshot

NOW = 1000.0
WORLD = ("using world size: {0}, data-parallel-size: {0}, tensor-model-parallel size: 1, "
         "pipeline-model-parallel size: 1 ")
ARGUMENTS = """\
------------------------ arguments ------------------------
  micro_batch_size ................................ {micro}
  pipeline_model_parallel_size .................... 1
  seq_length ...................................... 32
  tensor_model_parallel_size ...................... 1
  train_iters ..................................... {iters}
  world_size ...................................... {world}
-------------------- end of arguments ---------------------"""
LINE = (" iteration {n:8d}/      20 | consumed samples: {n:12d} | elapsed time per iteration (ms): "
        "{ms:.1f} | learning rate: 1.000E-03 | global batch size:     4 | {loss}loss scale: 1.0 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |{label}")
VIRTUAL = "virtual v100-sxm2-16gb"
ENDED = """\
Traceback (most recent call last):
  File "/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
pretrain_gpt.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : slurmnode2
  rank      : 3 (local_rank: 1)
  exitcode  : {code} (pid: 308){signal}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : slurmnode2
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 306)
============================================================
srun: error: slurmnode2: task 1: Exited with exit code 1
slurmstepd-slurmnode1: error: *** STEP 5.0 ON slurmnode1 CANCELLED AT 2026-01-01T00:00:00 ***
srun: error: slurmnode1: task 0: Terminated"""
LOST = ("[rank {}] error: lost contact with another rank (Connection reset by peer); its own "
        "message says why")
LATE = ("[rank {}] error: lost contact with another rank (Timed out waiting 18000ms for recv "
        "operation to complete); its own message says why")
OOM = ("CUDA out of memory. Tried to allocate 4.00 GiB (GPU 0; 15.78 GiB total capacity; 13.44 GiB "
       "already allocated; 1.97 GiB free; 13.44 GiB reserved in total by PyTorch)")


def lines(*after: str, world: int = 4, micro: int = 2, iters: int = 20, until: int = 3,
          label: str = "", loss: bool = True) -> list[str]:
    """A log: its start, `until` iterations, and what comes after them."""
    body = [LINE.format(n=n, ms=100.0 + n, loss=f"lm loss: {9 - n / 10:.6E} | " if loss else "",
                        label=f" {label} |" if label else "") for n in range(1, until + 1)]
    return "\n".join([WORLD.format(world), ARGUMENTS.format(micro=micro, iters=iters, world=world),
                      *body, *after]).splitlines()


def out_of_memory(rank: int) -> list[str]:
    """On one rank, with the others' and the launcher's noise before and after."""
    return lines(LOST.format(0), "Traceback (most recent call last):",
                 f"torch.OutOfMemoryError: {OOM} [{VIRTUAL}]",
                 f"[rank {rank}] RuntimeError: {OOM} [{VIRTUAL}]", LOST.format(1),
                 ENDED.format(code=1, signal=""), label=VIRTUAL, loss=False)


def killed() -> list[str]:
    """Rank 3, by SIGKILL."""
    return lines(LOST.format(2), LOST.format(0), LOST.format(1),
                 ENDED.format(code=-9, signal="  (SIGKILL)"))


def hung() -> list[str]:
    """Rank 1: the others wait in vain."""
    return lines(LATE.format(3), LATE.format(2), LATE.format(0), ENDED.format(code=1, signal=""))


def job(state: str = "RUNNING", **fields: object) -> SlurmJob:
    given: dict = {"node_count": 2, "nodes": "slurmnode[1-2]", "elapsed": "00:01:00",
                   "name": "sample", "out": Path("/w/log.txt"), "err": Path("/w/log.txt")}
    return SlurmJob(7, **{**given, "state": state, **fields})


def rank_file(number: int, **fields: object) -> dict:
    """Return the status of rank `number` of four in training: a step every 0.1 s until now."""
    return {"rank": number, "world_size": 4, "pid": 100 + number, "job": "7",
            "node": f"slurmnode{1 + number // 2}", "place": {"pp": 0, "dp": number, "tp": 0},
            "device": "the CPU", "modeled": False, "started": NOW - 100, "train_iters": 20,
            "iteration": 3, "state": "training", "milliseconds": 103.0, "pace": 0.1, "loss": 8.7,
            "tflops": None, "allocated": 2**29, "max_allocated": 2**30, "time": NOW - 0.2,
            **fields}


def virtual_file(number: int, **fields: object) -> dict:
    return rank_file(number, **{"device": VIRTUAL, "modeled": True, "gpu": number % 2,
                                "loss": None, "tflops": 4.85, "virtual_seconds": 0.3,
                                "memory_used": 10 * 2**30, "memory_total": 2**34, **fields})


def write_files(folder: Path, *files: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for fields in files:
        (folder / f"{fields['rank']}.json").write_text(json.dumps(fields))
    return folder


def take(folder: Path, what: SlurmJob, log: list[str], files: list[dict] | None = None,
         processes: dict[int, str] | None = None, script: str = "") -> Snapshot:
    """The picture of a job with four ranks, whose processes are alive unless said."""
    files = [rank_file(number) for number in range(4)] if files is None else files
    alive = {number: ranks.ALIVE for number in range(4)} | (processes or {})
    return snapshot.assemble(what, ranks.read(write_files(folder / "ranks", *files)), alive, log,
                             snapshot.log_errors(what, log), requested.configuration(log), script,
                             NOW)


def told(shown: Snapshot) -> dict[int, str]:
    return {row.rank: row.health for row in shown.rows}

"""A job script as data: run it with stand-ins for all that would start a program, and read what
they wrote down. Whatever else the script does, it does in a scratch copy of the workspace's
layout."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab.check import options
from lab.errors import LabError

STAND_IN = Path(__file__).with_name("stand_in.py")
NAMES = ("srun", "torchrun", "python", "python3", "scontrol", "hostname", "deepspeed", "mpirun",
         "sbatch", "salloc", "scancel", "squeue", "sinfo", "sacct", "nvidia-smi", "sleep")
SECONDS = 20
MOST_SCRIPT = 64 * 1024
MOST_RECORD = 1_000_000
MOST_OUTPUT = 4000  # characters, the last ones
FILE_BLOCKS = 32 * 1024  # of 1,024 bytes: what the script may write into one file


def record(home: Path, path: str) -> dict[str, Any]:
    """What the script at `path` (relative to the workspace `home`) would run.

    {"directives": {...}, "notes": [...], "launches": [...], "exit": int | None, "output": str},
    where `exit` is None when it was still running after 20 seconds, and paths in the workspace
    begin with $LAB_HOME. Raises LabError when there is no such script.
    """
    script = _read(home, path)
    found, notes = options.directives(script)
    with tempfile.TemporaryDirectory(prefix="lab-script-") as folder:
        scratch = Path(folder) / "workspace"
        _lay_out(home, scratch)
        launches, status, output = _run(script, Path(folder), scratch, found, notes)
    for entry in launches:
        entry["arguments"] = [_unscratched(word, scratch) for word in entry["arguments"]]
    return {"directives": found, "notes": notes, "launches": launches, "exit": status,
            "output": _unscratched(output, scratch)}


def _unscratched(text: str, scratch: Path) -> str:
    return text.replace(str(scratch), "$LAB_HOME")


def _read(home: Path, path: str) -> str:
    place = home / path
    try:
        inside = place.resolve().is_relative_to(home.resolve())
        if not inside or not place.is_file():
            raise LabError(f"{path} is not a file in the workspace {home}: "
                           "run the cell that writes it")
        with open(place, "rb") as file:
            content = file.read(MOST_SCRIPT + 1)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from error
    if len(content) > MOST_SCRIPT:
        raise LabError(f"{path} has more than {MOST_SCRIPT // 1024} KiB: is it a job script?")
    return content.decode(errors="replace")


def _lay_out(home: Path, scratch: Path) -> None:
    """The folders and the names that scripts look for, all empty, and the small scripts they
    call."""
    for folder in ("code", "data", "megatron/logs", "megatron/tensorboard", "megatron/checkpoints",
                   "megatron/Megatron-LM", "notebooks"):
        (scratch / folder).mkdir(parents=True)
    for pattern in ("data/*", "data/*/*", "megatron/Megatron-LM/*.py"):
        for path in home.glob(pattern):
            copy = scratch / path.relative_to(home)
            if path.is_dir():
                copy.mkdir(exist_ok=True)
            elif copy.parent.is_dir():
                copy.touch()
    for path in home.glob("code/*.sh"):
        if path.is_file() and path.stat().st_size <= MOST_SCRIPT:
            shutil.copyfile(path, scratch / "code" / path.name)


def _run(script: str, folder: Path, scratch: Path, found: dict[str, str], notes: list[str]
         ) -> tuple[list[dict[str, Any]], int | None, str]:
    """Run the script; the launches, its exit status (None: out of time), the end of its output."""
    programs, written = folder / "programs", folder / "record"
    programs.mkdir()
    for name in NAMES:
        wrapper = programs / name
        words = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), name])
        wrapper.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        wrapper.chmod(0o755)
    # Classic scripts name the workspace /dli.
    (folder / "script").write_text(re.sub(r"/dli(?=[/\s'\"]|$)", str(scratch), script, flags=re.M))
    env = _allocation(found, notes) | {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "HOME": str(scratch),
        "LAB_HOME": str(scratch), "SLURM_SUBMIT_DIR": str(scratch), "LAB_RECORD": str(written)}
    limited = f"ulimit -f {FILE_BLOCKS}; exec bash {shlex.quote(str(folder / 'script'))}"
    with open(folder / "output", "w+b") as output:
        process = subprocess.Popen(["bash", "-c", limited], cwd=scratch, env=env, stdout=output,
                                   stderr=output, stdin=subprocess.DEVNULL, start_new_session=True)
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(SECONDS)
        finally:  # whatever it left in the background, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - MOST_OUTPUT))
        last = output.read().decode(errors="replace")
    return _launches(written), status, last


def _allocation(found: dict[str, str], notes: list[str]) -> dict[str, str]:
    """The variables that Slurm would give the job."""
    try:
        per_node = found.get("ntasks-per-node")
        tasks = options.count(found.get("ntasks"), 1)
        fitting = -(-tasks // options.count(per_node, tasks)) if "ntasks" in found else 1
        nodes = options.count(found.get("nodes"), fitting)
        if per_node and "ntasks" not in found:
            tasks = nodes * options.count(per_node, 1)
        tasks = max(tasks, nodes)
    except options.BadOption as error:
        notes.append(f"#SBATCH: {error}")
        nodes, tasks, per_node = 1, 1, None
    share, rest = divmod(tasks, nodes)
    spread = f"{share + 1}(x{rest}),{share}(x{nodes - rest})" if rest else f"{share}(x{nodes})"
    hosts = "slurmnode1" if nodes == 1 else f"slurmnode[1-{nodes}]"
    variables = {
        "SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_JOB_NAME": found.get("job-name", "job"),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts, "SLURM_TASKS_PER_NODE": spread, "SLURM_NODEID": "0",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "slurmnode1",
        "SLURM_JOB_PARTITION": found.get("partition", "slurmpar"), "USER": "student",
        "TERM": "xterm"}
    if "ntasks" in found or per_node:
        variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    for option, name in (("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
                         ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
                         ("gpus-per-node", "SLURM_GPUS_PER_NODE"), ("gpus", "SLURM_GPUS")):
        if option in found:
            variables[name] = found[option]
    return variables


def _launches(written: Path) -> list[dict[str, Any]]:
    if not written.exists():
        return []
    with open(written, "rb") as file:
        lines = file.read(MOST_RECORD).decode(errors="replace").splitlines()
    try:
        launches = [json.loads(line) for line in lines]
        for entry in launches:
            entry["arguments"] = [str(word) for word in entry["arguments"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LabError("the script wrote into the record of what it starts") from error
    return launches

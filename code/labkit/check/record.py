"""Record what a job script would run, by running it with stand-ins for srun, torchrun, python, and
the like. The script itself runs in a scratch copy of the workspace's layout."""

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
import time
from pathlib import Path
from typing import Any

from labcore.errors import LabError
from labkit.check import allocation, options
from labkit.check.sides import DEFAULT_TRIAL, Trial

STAND_IN = Path(__file__).with_name("stand_in.py")
PYTHONS = ("python", "python3", *(f"python3.{minor}" for minor in range(8, 16)))
NAMES = ("srun", "torchrun", *PYTHONS, "scontrol", "hostname", "deepspeed", "mpirun",
         "sbatch", "salloc", "scancel", "squeue", "sinfo", "sacct", "nvidia-smi", "sleep",
         "taskset", "numactl")
SECONDS = 20
SECONDS_TO_BEGIN = 3.0  # for a background stand-in to start on a busy machine
EARLIER = "iteration_5.pt"  # a file of an earlier run, beside those that a trial names
MOST_SCRIPT = 64 * 1024
MOST_RECORD = 1_000_000
MOST_OUTPUT = 4000  # characters, the last ones
# Programs called by their full paths (/usr/bin/srun), which a PATH cannot replace.
BY_PATH = re.compile(r"(?<![\w.$}/-])(?:/[\w.-]+)+/"
                     rf"({'|'.join(map(re.escape, NAMES))})(?![\w./-])")
# If this process ignored SIGQUIT, stand-ins would inherit that and look as if started with `&`.
START = ("import os, signal, sys; signal.signal(signal.SIGQUIT, signal.SIG_DFL); "
         "os.execvp('bash', ['bash', '-c', sys.argv[1]])")
FILE_BLOCKS = 32 * 1024  # of 1,024 bytes: what the script may write into one file


def record(home: Path, path: str, trial: Trial = DEFAULT_TRIAL) -> dict[str, Any]:
    """Return what a script would run.

    Args:
        home: the workspace.
        path: the script, relative to it.
        trial: its arguments, its job ID, what it finds, how its programs end, and the folder in
            which sbatch is called.

    {"components": [{...}], "notes": [...], "launches": [...], "exit": int | None, "output": str},
    where `components` are the #SBATCH options of each component of the job (of a heterogeneous one,
    several), `exit` is None when it was still running after SECONDS, and paths in the workspace
    begin with $LAB_HOME. Raises LabError when there is no such script.
    """
    script = _read(home, path)
    components, notes = allocation.directives(script)
    if (cpus := _cpus_of_cluster(home)) < allocation.CPUS:
        for one in components:
            if "exclusive" in one:
                one[allocation.CPUS_OF_CLUSTER] = str(cpus)
    if "\r\n" in script:
        notes.insert(0, "its lines end as on Windows (\\r\\n, DOS line breaks), and sbatch refuses "
                     f"that: run `sed -i 's/\\r$//' {path}`, or let your editor save it with LF")
        script = script.replace("\r\n", "\n")
    with tempfile.TemporaryDirectory(prefix="lab-script-") as folder:
        scratch = Path(folder).resolve() / "workspace"
        _lay_out(home, scratch)
        saved = {Path(name).parent / EARLIER for name in (*trial.finds, *trial.writes)}
        for name in (*saved, *trial.finds):
            (scratch / name).parent.mkdir(parents=True, exist_ok=True)
            (scratch / name).touch()
        (scratch / trial.submitted_from).mkdir(parents=True, exist_ok=True)
        launches, status, output = _run(script, Path(folder), scratch, components, notes, trial)
        notes += [f"it deletes what earlier runs saved in the folder {file.parent}"
                  for file in sorted(saved) if not (scratch / file).exists()]
    for entry in launches:
        entry["arguments"] = [_with_lab_home(word.replace("$LAB_HOME", r"\$LAB_HOME"), scratch)
                              # a literal that the shell did not expand
                              for word in entry["arguments"]]
        entry["folder"] = _with_lab_home(str(entry.get("folder", "")), scratch)
    return {"components": components, "notes": notes, "launches": launches, "exit": status,
            "output": _with_lab_home(output, scratch)}


def _with_lab_home(text: str, scratch: Path) -> str:
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
    """Create the folders and (empty) files that scripts look for, and the small scripts they call.
    """
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


def _stand_ins(programs: Path, written: Path, scratch: Path, trial: Trial) -> None:
    """Write the programs that record their command lines instead of running.

    Their settings are in their own text rather than in the environment, so that a script does not
    see or change them by accident. A script that looks for them can find them.

    Args:
        programs: the folder for them.
        written: the file that they write to.
        scratch: the copy of the workspace's layout.
        trial: how the programs end.
    """
    programs.mkdir()
    ends = "\n".join(f"{code} {word}" for word, code in trial.exit_codes)
    for name in NAMES:
        wrapper = programs / name
        words = shlex.join([sys.executable, "-I", "-S", str(STAND_IN), str(written), str(scratch),
                            "\n".join(trial.writes), ends, name])
        # bash, because other shells drop the functions that a script exports (export -f).
        wrapper.write_text(f'#!/bin/bash\nexec {words} "$@"\n')
        wrapper.chmod(0o755)


def _cpus_of_cluster(home: Path) -> int:
    """Return the CPUs of a node of the workspace's cluster; as many as usual if it has none."""
    try:
        record = json.loads((home / ".cluster" / "running.json").read_text())
        return max(1, int(record["profile"]["cpus"]))
    except (OSError, ValueError, KeyError, TypeError):
        return allocation.CPUS


def _run(script: str, folder: Path, scratch: Path, components: list[dict[str, str]],
         notes: list[str], trial: Trial) -> tuple[list[dict[str, Any]], int | None, str]:
    """Return the launches, the exit status (None: out of time), and the end of the output.

    Args:
        script: its text.
        folder: for files of this run.
        scratch: the copy of the workspace's layout.
        components: the directives of each component; the script runs on the first.
        notes: receives what would go wrong.
        trial: its arguments, and how its programs end.
    """
    programs, written = folder / "programs", folder / "record"
    _stand_ins(programs, written, scratch, trial)
    (folder / "script").write_text(BY_PATH.sub(rf"{programs}/\1", _with_dli(script, scratch)))
    submitted_from = scratch / trial.submitted_from
    directives = components[0]
    begins_in = _begins_in(directives, folder, scratch, notes, trial)
    env = allocation.environment(components, notes, trial.job_id) | {
        "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "HOME": str(scratch),
        "LAB_HOME": str(scratch), "SLURM_SUBMIT_DIR": str(submitted_from),
        "TMPDIR": "/tmp"}  # slurmstepd sets it, too
    env = options.exported(directives.get("export"), env)
    if "ALL" not in directives.get("export", "ALL").split(","):
        env["SLURM_EXPORT_ENV"] = directives["export"]
    command = shlex.join(["bash", str(folder / "script"), *trial.arguments])
    limited = f"ulimit -f {FILE_BLOCKS}; exec {command}"
    words = ["bash", "-c", limited]
    if signal.getsignal(signal.SIGQUIT) is not signal.SIG_DFL:
        words = [sys.executable, "-I", "-S", "-c", START, limited]
    with open(folder / "output", "w+b") as output:
        process = subprocess.Popen(
            words, cwd=begins_in, env=env, stdout=output, stderr=output,
            stdin=subprocess.DEVNULL, start_new_session=True)
        status = _exit_status(process, written, notes)
        end = output.seek(0, os.SEEK_END)
        output.seek(max(0, end - MOST_OUTPUT))
        last = output.read().decode(errors="replace")
    return _launches(written), status, last


def _exit_status(process: subprocess.Popen, written: Path, notes: list[str]) -> int | None:
    """Return a script's exit status (None: out of time), and end its process group."""
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(SECONDS)
            if _still_running(process.pid, written):
                notes.append("the script ends while a program that it started with & still runs, "
                             "and Slurm then ends the whole job: put `wait` at its end")
            return status
        return None
    finally:  # whatever it left in the background, too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _with_dli(text: str, scratch: Path) -> str:
    """Replace /dli, which is the workspace in classic scripts, by the copy of its layout."""
    return re.sub(r"/dli(?=[/\s'\"]|$)", str(scratch), text, flags=re.M)


def _begins_in(directives: dict[str, str], folder: Path, scratch: Path, notes: list[str],
               trial: Trial) -> Path:
    """Return the folder in which Slurm starts the script.

    Args:
        directives: the directives.
        folder: for files of this run.
        scratch: the copy of the workspace's layout.
        notes: takes what would go wrong.
        trial: the folder in which sbatch is called.
    """
    chdir = scratch / trial.submitted_from / _with_dli(directives.get("chdir", "."), scratch)
    if options.can_enter(str(chdir)):
        return chdir
    caller = "the workspace" if trial.submitted_from == "." else trial.submitted_from
    wrong = "you may not enter this folder" if os.path.isdir(chdir) else "there is no such folder"
    notes.append(f"#SBATCH --chdir={directives['chdir']}: {wrong} when sbatch is called in "
                 f"{caller}, so Slurm runs the script in /tmp: give an absolute path (/dli is the "
                 "workspace)")
    instead = folder / "tmp"
    instead.mkdir()
    return instead


def _still_running(group: int, written: Path) -> bool:
    """Return whether a stand-in still runs in the background after its script has ended."""
    deadline = time.monotonic() + SECONDS_TO_BEGIN
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            if any(written.parent.glob(f"{written.name}.running*")):
                return True
            os.killpg(group, 0)  # a process exists that may not have started yet
            time.sleep(0.02)
    return False


def _launches(written: Path) -> list[dict[str, Any]]:
    if not written.exists():
        return []
    with open(written, "rb") as file:
        content = file.read(MOST_RECORD + 1)
    if len(content) > MOST_RECORD:  # the truncated part could start another training run
        raise LabError("the record of what the script starts is too long")
    lines = content.decode(errors="replace").splitlines()
    try:
        launches = [json.loads(line) for line in lines]
        for entry in launches:
            entry["arguments"] = [str(word) for word in entry["arguments"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise LabError("the script wrote into the record of what it starts") from error
    return launches

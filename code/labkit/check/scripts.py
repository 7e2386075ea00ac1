"""`check.script` and `check.program`: judge a job script by the job that it would run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labcore.colors import strong
from labcore.errors import LabError
from labkit.check.checks import Failed, passed, tally
from labkit.check.given import differences, report
from labkit.check.job import Job, resolve
from labkit.check.runs import TRAINER
from labkit.check.sides import Trial, current_side

NOT_BUILT: Mapping[str, Any] = {}  # `lab build` writes `given=` into every notebook


def script(path: str, *, only: Sequence[str] = (),
           given: Mapping[str, Any] | None = NOT_BUILT) -> Job:
    """Return the job that a student's script would run, after comparing it with the exercise's job.

    Args:
        path: the script, relative to the workspace.
        only: the flags that the student may choose; the check judges them.
        given: all other settings, which `lab build` takes from the reference; None compares
            nothing and ignores problems.

    Raises Failed if the script cannot be read, starts nothing, would go wrong, or differs from
    `given` in a flag that is not in `only`.
    """
    if given is NOT_BUILT:
        raise Failed("this notebook is older than the course's software, and has nothing to "
                     "compare your script with: copy your answers into the new notebook beside "
                     "it, whose name ends in .new.ipynb")
    try:
        job = resolve(current_side().script(path))
    except LabError as error:
        raise Failed(str(error)) from None
    if not job.runs:
        raise Failed("\n".join((f"{path} does not start the trainer.", *job.problems)))
    if given is not None:
        if job.problems:
            raise Failed("This would go wrong. " + " ".join(job.problems))
        if changes := differences(job, given, only):
            raise Failed(report(changes, path, only))
    tally.note(path)
    passed(f"{path} starts {TRAINER} on {job.runs[0].size} ranks")
    print_notes(job)
    return job


def program(path: str, trainer: str, *, arguments: Sequence[str] = (), finds: Sequence[str] = (),
            writes: Sequence[str] = (), ends: int | Mapping[str, int] = 0,
            submitted_from: str = ".", job_id: int = 1, times: int | None = 1) -> Job:
    """Return the job that a student's script would run, if the program ended in a certain way.

    The script runs with stand-ins for srun, torchrun, and python, as in check.script. The program
    is not run, and its arguments are not compared with anything.

    Args:
        path: the script, relative to the workspace.
        trainer: the file name of the program, such as "train_ddp.py".
        arguments: the script's own arguments, such as ["--steps", "7"].
        finds: empty files, relative to the workspace, that exist before the script starts.
        writes: empty files, relative to the workspace, that the program leaves.
        ends: the exit code of the program, and of torchrun. The script may end with it. For several
            programs, the exit codes of those that have a word in their arguments, by word, such as
            {"wiki": 3}; others succeed, and the script may end with any exit code.
        submitted_from: the folder, relative to the workspace, in which sbatch is called.
        job_id: the ID that Slurm gives the job. With two calls, compare the ports of two jobs.
        times: how often the script must start the program; None for any number, which the check
            judges by `job.runs`.

    Raises Failed if the script cannot be read, does not start the program `times` times, or would
    go wrong.
    """
    try:
        trial = Trial(tuple(arguments), tuple(finds), tuple(writes), ends, submitted_from,
                      job_id)
        job = resolve(current_side().script(path, trial), trainer, trial)
    except LabError as error:
        raise Failed(str(error)) from None
    if not job.runs or times not in (None, len(job.runs)):
        does = f"starts {trainer} {len(job.runs)} times"
        if not job.runs:
            does = f"does not start {trainer}"
        raise Failed("\n".join((f"{path} {does}.", *job.problems)))
    if job.problems:
        raise Failed("This would go wrong. " + " ".join(job.problems))
    tally.note(path)
    passed(f"{path} starts {trainer} on {job.runs[0].size} ranks")
    print_notes(job)
    return job


def print_notes(job: Job) -> None:
    """Print the advice for a job."""
    for note in job.notes:
        print(f"{strong('Note')}: {note}.")

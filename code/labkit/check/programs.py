"""`check.program`: a job script that starts a program other than the course's trainer."""

from __future__ import annotations

from collections.abc import Sequence

from labcore.errors import LabError
from labkit.check.checks import Failed, passed, tally
from labkit.check.job import Job, print_notes, resolve
from labkit.check.sides import Trial, side


def program(path: str, trainer: str, *, arguments: Sequence[str] = (), finds: Sequence[str] = (),
            writes: Sequence[str] = (), ends: int = 0, submitted_from: str = ".",
            job_id: int = 1) -> Job:
    """Return the job that a student's script would run, if the program ended in a certain way.

    The script runs with stand-ins for srun, torchrun, and python, as in check.script. The program
    is not run, and its arguments are not compared with anything.

    Args:
        path: the script, relative to the workspace.
        trainer: the file name of the program, such as "train_ddp.py".
        arguments: the script's own arguments, such as ["--steps", "7"].
        finds: empty files, relative to the workspace, that exist before the script starts.
        writes: empty files, relative to the workspace, that the program leaves.
        ends: the exit code of the program, and of torchrun. The script may end with it.
        submitted_from: the folder, relative to the workspace, in which sbatch is called.
        job_id: the ID that Slurm gives the job. With two calls, compare the ports of two jobs.

    Raises Failed if the script cannot be read, does not start the program once, or would go wrong.
    """
    try:
        trial = Trial(tuple(arguments), tuple(finds), tuple(writes), ends, submitted_from,
                      job_id)
        job = resolve(side().script(path, trial), trainer, trial)
    except LabError as error:
        raise Failed(str(error)) from None
    if len(job.runs) != 1:
        does = f"starts {trainer} {len(job.runs)} times"
        if not job.runs:
            does = f"does not start {trainer}"
        raise Failed("\n".join((f"{path} {does}.", *job.problems)))
    if job.problems:
        raise Failed("This would go wrong. " + " ".join(job.problems))
    tally.note(path)
    passed(f"{path} starts {trainer} on {job.run.size} ranks")
    print_notes(job)
    return job

"""What Slurm would do with a job besides starting it once: hold it, repeat it, cancel it, or start
jobs that it submits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from labkit.check.allocation import Component
from labkit.check.launches import Launch

MOST_TEXT = 50  # characters of a value in a message
# What scontrol can do to the job itself, and what happens then; `requeue` is not among them.
CONTROLS = {"hold": "it waits in the queue until somebody releases it",
            "uhold": "it waits in the queue until somebody releases it",
            "requeuehold": "it waits in the queue until somebody releases it",
            "suspend": "it is suspended until somebody resumes it",
            "update": "it is no longer the job that was submitted"}
DEADLY = ("KILL", "9", "TERM", "15")  # signals that end a job
EVERY_JOB = ("--me", "-u", "--user", "-n", "--name", "--jobname", "-p", "--partition", "-t",
             "--state", "-A", "--account", "-w", "--nodelist")


def problems(components: Sequence[Component], launches: Sequence[Launch], job_id: int
             ) -> Iterator[str]:
    """Yield what keeps the script from running once, when its turn comes.

    Args:
        components: the job's.
        launches: what the script starts, in order.
        job_id: its own ID.
    """
    for component in components:
        yield from _of_options(component.directives)
    for launch in launches:
        if launch.program == "sbatch":
            yield ("it submits another job with sbatch: if that job does the same, jobs multiply. "
                   "The exercise asks for one job")
        elif launch.program == "scancel" and _cancels(launch.arguments, job_id):
            yield "it cancels its own job with scancel: nothing after that line runs"
        elif launch.program == "scontrol":
            command = launch.arguments[0].lower() if launch.arguments else ""
            named = {one for word in launch.arguments[1:]
                     for one in word.lower().removeprefix("jobid=").split(",")}
            if command in CONTROLS and str(job_id) in named:
                yield f"it calls scontrol {command} for its own job: {CONTROLS[command]}"


def _of_options(directives: dict[str, str]) -> Iterator[str]:
    array, begin, waits = (directives.get(name) for name in ("array", "begin", "dependency"))
    if array is not None:
        yield (f"#SBATCH --array={array[:MOST_TEXT]}: Slurm runs the script once for each number "
               "of the array, and the exercise asks for one job")
    if "hold" in directives:
        yield "#SBATCH --hold: the job waits in the queue until somebody releases it"
    if "test-only" in directives:
        yield "#SBATCH --test-only: sbatch only says when the job would start, and submits nothing"
    if begin is not None and begin != "now":
        yield f"#SBATCH --begin={begin[:MOST_TEXT]}: the job does not start before that"
    if waits is not None and waits != "singleton":
        yield f"#SBATCH --dependency={waits[:MOST_TEXT]}: the job waits for other jobs"


def _cancels(words: Sequence[str], job_id: int) -> bool:
    """Return whether scancel, called with these words, ends the job; a signal does not."""
    options = [word for word in words if word.startswith("-")]
    signal = re.search(r"(?:^|\0)(?:-s\0?|--signal[=\0])([^\0]+)", "\0".join(words))
    if signal and signal[1].upper().removeprefix("SIG") not in DEADLY:
        return False
    ids = [word.partition("_")[0].partition(".")[0] for word in words if "." not in word]
    return str(job_id) in ids or any(word.partition("=")[0] in EVERY_JOB for word in options)

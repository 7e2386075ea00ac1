"""What Slurm would do with a job besides starting it once.

The commands that a script calls (sbatch, scancel, scontrol) act on a small model of Slurm's queue,
in which the script's own job runs. What counts is the queue's state at the end: jobs left behind,
and whether the script's own job is canceled, held, suspended, or back in the queue. So a script may
hold a job and release it, or submit one and cancel it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from labkit.check import options
from labkit.check.allocation import Component
from labkit.check.launches import Launch

MOST_TEXT = 50  # characters of a value in a message
RUNNING, PENDING, SUSPENDED, CANCELED = "RUNNING", "PENDING", "SUSPENDED", "CANCELED"
DEADLY = ("KILL", "9", "TERM", "15")  # signals that end a job
# What `scontrol update` may set without changing what runs, where, or when.
HARMLESS = ("jobid", "job", "comment", "name", "jobname", "nice", "mailtype", "mailuser")
# scancel's options with a value, by their short names; those without change nothing here.
FILTERS = {"u": "user", "n": "name", "p": "partition", "t": "state", "A": "account",
           "w": "nodelist", "q": "qos", "s": "signal", "M": "clusters", "R": "reservation"}
LONG_FILTERS = {**{name: name for name in (*FILTERS.values(), "wckey", "cluster")},
                "jobname": "name"}


@dataclass
class QueuedJob:
    """A job in the queue.

    Attributes:
        state: RUNNING, PENDING, SUSPENDED, or CANCELED.
        name: its name; "" if only the cluster knows it.
        held: whether it waits until somebody releases it, once it is pending.
        requeued: whether it has been put back into the queue.
        changed: the setting that a command has changed, such as "TimeLimit=1".
    """

    state: str
    name: str = ""
    held: bool = False
    requeued: bool = False
    changed: str = ""


@dataclass
class Queue:
    """The jobs that the script's commands can reach; its own one runs.

    Attributes:
        own: the ID of the script's own job.
        requeueable: whether Slurm may put that job back into the queue.
        jobs: by ID, in the order of submission.
        refused: what Slurm would answer to commands that it refuses.
    """

    own: int
    requeueable: bool
    jobs: dict[int, QueuedJob]
    refused: list[str] = field(default_factory=list)

    @property
    def job(self) -> QueuedJob:
        """The script's own job."""
        return self.jobs[self.own]

    def run(self, launch: Launch) -> None:
        """Apply one command, if it is one that changes jobs."""
        if launch.program == "sbatch":
            self._submit(launch.arguments)
        elif launch.program == "scancel":
            self._cancel(launch.arguments)
        elif launch.program == "scontrol" and launch.arguments:
            self._control(launch.arguments[0].lower(), launch.arguments[1:])

    def _submit(self, words: Sequence[str]) -> None:
        try:
            requested, _ = options.parse(list(words), "sbatch")
        except options.BadOption as error:
            self.refused.append(str(error))
            return
        if "test-only" not in requested:  # IDs are numbered as stand-ins print them
            self.jobs[max(self.jobs) + 1] = QueuedJob(PENDING, requested.get("job-name", ""),
                                                      "hold" in requested)

    def _cancel(self, words: Sequence[str]) -> None:
        filters, named = _scancel_words(words)
        if filters.get("signal", "TERM").upper().removeprefix("SIG") not in DEADLY:
            return
        numbers = _numbers(named)
        for number, job in self.jobs.items():
            chosen = number in numbers if named else bool(filters)
            states = filters.get("state", job.state).upper().split(",")
            if chosen and any(job.state.startswith(one) or (one == "PD" and job.state == PENDING)
                              for one in states if one) and (
                    not job.name or filters.get("name", job.name) == job.name):
                job.state = CANCELED

    def _control(self, command: str, words: Sequence[str]) -> None:
        numbers = _numbers(word.lower().removeprefix("jobid=") for word in words)
        for job in (job for number, job in self.jobs.items() if number in numbers):
            if command in ("hold", "uhold", "release"):
                job.held = command != "release"
            elif command == "suspend" and job.state == RUNNING:
                job.state = SUSPENDED
            elif command == "resume" and job.state == SUSPENDED:
                job.state = RUNNING
            elif command == "update":
                job.changed = next((word for word in words if "=" in word and word.partition(
                    "=")[0].lower() not in HARMLESS), job.changed)
            elif command in ("requeue", "requeuehold") and job.state in (RUNNING, SUSPENDED):
                if not self.requeueable:
                    self.refused.append("it was submitted with --no-requeue, so scontrol "
                                        f"{command} is refused")
                    continue
                job.state, job.requeued = PENDING, True
                job.held = job.held or command == "requeuehold"


def _scancel_words(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return scancel's options that choose jobs or a signal, and the jobs that it names."""
    filters: dict[str, str] = {}
    named: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            named.append(word)
            continue
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = LONG_FILTERS.get(name, name)
            has_value = name in LONG_FILTERS.values()
        else:
            name, value = FILTERS.get(word[1:2], ""), word[2:].removeprefix("=")
            has_value, equals = bool(name), value
        if has_value:
            filters[name] = value if equals or not rest else rest.pop(0)
        elif name == "me":
            filters["user"] = ""
    return filters, named


def _numbers(words: Sequence[str] | Iterator[str]) -> set[int]:
    """Return the jobs that words name: "7", "7,8", and "7_1" (a task of an array), but no steps
    ("7.0")."""
    parts = [part.partition("_")[0] for word in words for part in word.split(",")]
    return {int(part) for part in parts if part.isascii() and part.isdigit() and len(part) < 10}


def queue(components: Sequence[Component], launches: Sequence[Launch], job_id: int) -> Queue:
    """Return the queue after the script has ended.

    Args:
        components: the job's.
        launches: what the script starts, in order.
        job_id: its own ID.
    """
    directives = components[0].directives
    own = QueuedJob(RUNNING, directives.get("job-name", ""))
    result = Queue(job_id, "no-requeue" not in directives, {job_id: own})
    for launch in launches:
        if result.job.state not in (CANCELED, SUSPENDED):  # nothing after that line runs
            result.run(launch)
    return result


def problems(components: Sequence[Component], state: Queue) -> Iterator[str]:
    """Yield what keeps the script from running once, when its turn comes.

    Args:
        components: the job's.
        state: the queue after the script has ended.
    """
    for component in components:
        yield from _of_options(component.directives)
    if any(job.state != CANCELED for number, job in state.jobs.items() if number != state.own):
        yield ("it submits another job with sbatch: if that job does the same, jobs multiply. "
               "The exercise asks for one job")
    if state.job.state == CANCELED:
        yield "it cancels its own job with scancel: nothing after that line runs"
    elif state.job.held:
        yield "it holds its own job with scontrol: it waits in the queue until somebody releases it"
    elif state.job.state == SUSPENDED:
        yield "it calls scontrol suspend for its own job, which waits until somebody resumes it"
    if state.job.changed:
        yield (f"it changes its own job with scontrol update {state.job.changed[:MOST_TEXT]}: it "
               "is no longer the job that was submitted")
    yield from state.refused


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

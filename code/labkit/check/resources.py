"""Check that a job requests the GPUs and the CPUs that its ranks need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from labkit.check import options
from labkit.check.allocation import Component
from labkit.check.launches import UNKNOWN, Launch
from labkit.check.runs import TrainingRun

ON_GPUS = ("virtual", "cuda")
CPUS = "cpus-per-task"
REQUEST = "#SBATCH --gpus-per-node={0} (or --gres=gpu:{0}, --gpus, --gpus-per-task)"


def gpu_advice(run: TrainingRun, components: Sequence[Component]) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of a run that has fewer GPUs than ranks on a node.

    It is a problem if the run needs GPUs, and a note if it only prefers them.

    Args:
        run: the ranks.
        components: the job's components.
    """
    problems: list[str] = []
    notes: list[str] = []
    most_ranks: dict[int, int] = {}
    for node in run.on_nodes:
        most_ranks[node.component] = max(node.ranks, most_ranks.get(node.component, 0))
    for number, component in enumerate(components):
        most = most_ranks.get(number, 0)
        have = min(options.gpus_of_nodes(component.directives, component.nodes))
        if most > have:
            where = f"component {number} of the job: " if len(components) > 1 else ""
            wrong, noted = _advice(run, most, have)
            problems += [where + text for text in wrong]
            notes += [where + text for text in noted]
    return problems, notes


def idle_nodes(components: Sequence[Component], launches: Sequence[Launch]) -> Iterator[str]:
    """Yield a problem for each component of a heterogeneous job that has nodes without a program.

    Args:
        components: the job's components.
        launches: what the job starts.
    """
    started = [launch for launch in launches
               if launch.step >= 0 or launch.program in ("python", "torchrun")]
    if len(components) == 1 or any(launch.host == UNKNOWN for launch in started):
        return
    every = ",".join(map(str, range(len(components))))
    for number, component in enumerate(components):
        used = len({launch.host for launch in started if launch.component == number})
        if used < component.nodes:
            yield (f"component {number} of the job has {component.nodes} node(s), and programs "
                   f"start on {used} of them" + ("" if used else (
                       ". Without --het-group, srun uses component 0 only: start the ranks with "
                       f"srun --het-group={every}")))


def _advice(run: TrainingRun, ranks: int, have: int) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of `ranks` on a node with only `have` GPUs."""
    device, backend = _device_and_backend(run)
    instead = run.settings.get("DEVICE_INSTEAD_OF_CPU")
    if device.partition(":")[0] in ON_GPUS:
        return [_shortage(ranks, f"--device {device}", have)], []
    if device == "cpu" and instead in ON_GPUS:
        return [_shortage(ranks, f"DEVICE_INSTEAD_OF_CPU={instead}", have)], []
    if device in ("", "auto") and backend == "nccl":  # on the CPU, the trainer uses gloo instead
        return [], [_shortage(ranks, "--distributed-backend nccl", have)]
    return [], []


def _shortage(ranks: int, wanted: str, have: int) -> str:
    """Return a message that names the missing GPUs and the option that requests them.

    Args:
        ranks: number of ranks on the node.
        wanted: the flag that makes them need GPUs.
        have: number of GPUs per node.
    """
    request = REQUEST.format(ranks)
    if not have:
        return (f"the ranks run on GPUs ({wanted}), but the job requests none, and a real cluster "
                f"would allocate none. Request them with {request}")
    return (f"{ranks} ranks per node run on GPUs ({wanted}), and the job requests "
            f"{have} per node. Every rank needs its own: {request}")


def _device_and_backend(run: TrainingRun) -> tuple[str, str]:
    if run.flags is not None:
        return run.flags.device, run.flags.distributed_backend or ""
    return _value(run.arguments, "--device"), _value(run.arguments, "--distributed-backend")


def _value(words: Sequence[str], flag: str) -> str:
    """Return the last value of a flag on a command line, or "" without it."""
    last = ""
    for word, following in itertools.zip_longest(words, words[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name == flag:
            last = value if equals else following
    return last


def cpus_of_step(srun: Launch) -> str:
    """Return the CPUs per task that srun requests, or "" if it requests none."""
    requested = _value(srun.arguments, f"--{CPUS}") or srun.variables.get("SRUN_CPUS_PER_TASK", "")
    try:
        return str(options.cpus(requested))
    except options.BadOption:  # srun was not told, or refuses it; a forged record may have anything
        return ""


def fewest_cpus(sruns: Sequence[Launch]) -> str:
    """Return the CPUs per task of the step that requests the fewest, or "" if one requests none."""
    return min(map(cpus_of_step, sruns), key=lambda cpus: int(cpus or 0), default="")


def cpu_notes(components: Sequence[Component], sruns: Sequence[Launch]) -> Iterator[str]:
    """Yield a note if srun does not pass on the CPUs that the job requests for each task.

    Args:
        components: the job's components.
        sruns: the ones that start the ranks.
    """
    wanted = [one.directives[CPUS] for one in components if one.directives.get(CPUS, "1") != "1"]
    if not sruns or not wanted or fewest_cpus(sruns):
        return
    pass_on = ('"$SLURM_CPUS_PER_TASK", or `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK`'
               if len(components) == 1 else  # the variable is then ..._HET_GROUP_0
               f"{wanted[0]}, or `export SRUN_CPUS_PER_TASK={wanted[0]}`")
    yield (f"the job requests --{CPUS}={wanted[0]}, but srun does not inherit that (since Slurm "
           f"22.05) and gives each task one CPU. Pass it on: srun --{CPUS}={pass_on}")

"""Check that a job requests the GPUs and the CPUs that its ranks need."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from labkit.check import options
from labkit.check.launches import Launch
from labkit.check.runs import TrainingRun

ON_GPUS = ("virtual", "cuda")
CPUS = "cpus-per-task"
REQUEST = "#SBATCH --gpus-per-node={0} (or --gres=gpu:{0}, --gpus, --gpus-per-task)"


def gpu_advice(run: TrainingRun, directives: Mapping[str, str], nodes: int
               ) -> tuple[list[str], list[str]]:
    """Return the problems and the notes of a run that has fewer GPUs than ranks on a node.

    It is a problem if the run needs GPUs, and a note if it only prefers them.

    Args:
        run: the ranks.
        directives: the script's #SBATCH options.
        nodes: the number of nodes that they request.
    """
    device, backend = _device_and_backend(run)
    instead = run.settings.get("DEVICE_INSTEAD_OF_CPU")
    have = min(options.gpus_of_nodes(directives, nodes))
    if have >= run.ranks_per_node:
        return [], []
    if device.partition(":")[0] in ON_GPUS:
        return [_shortage(run, f"--device {device}", have)], []
    if device == "cpu" and instead in ON_GPUS:
        return [_shortage(run, f"DEVICE_INSTEAD_OF_CPU={instead}", have)], []
    if device in ("", "auto") and backend == "nccl":  # on the CPU, the trainer uses gloo instead
        return [], [_shortage(run, "--distributed-backend nccl", have)]
    return [], []


def _shortage(run: TrainingRun, wanted: str, have: int) -> str:
    """Return a message that names the missing GPUs and the option that requests them.

    Args:
        run: the ranks.
        wanted: the flag because of which they need GPUs.
        have: GPUs per node.
    """
    request = REQUEST.format(run.ranks_per_node)
    if not have:
        return (f"the ranks run on GPUs ({wanted}), but the job requests none, and a real cluster "
                f"would allocate none. Request them with {request}")
    return (f"{run.ranks_per_node} ranks per node run on GPUs ({wanted}), and the job requests "
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


def cpu_notes(directives: Mapping[str, str], sruns: Sequence[Launch]) -> Iterator[str]:
    """Yield a note if srun does not pass on the CPUs that the job requests for each task.

    Args:
        directives: the script's #SBATCH options.
        sruns: the ones that start the ranks.
    """
    wanted = directives.get(CPUS, "1")
    if sruns and wanted != "1" and not fewest_cpus(sruns):
        yield (f"the job requests --{CPUS}={wanted}, but srun does not inherit that (since Slurm "
               f"22.05) and gives each task one CPU. Pass it on: srun --{CPUS}="
               '"$SLURM_CPUS_PER_TASK", or `export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK`')

"""taskset, numactl, and srun --cpu-bind: how many CPUs they leave to the command that they run.

Standard library only and no relative imports: stand_in.py runs it without the environment.
"""

from __future__ import annotations

import os

MASK = "SLURM_CPU_BIND_LIST"  # Slurm's variable for the CPUs that a task may use
MOST_CPUS = 4096
# Options of numactl that have a value, which may be attached with "=".
VALUED = ("-N", "--cpunodebind", "-m", "--membind", "-i", "--interleave", "-p", "--preferred",
          "-w", "--weighted-interleave", "-P", "--preferred-many")


def run(name: str, words: list[str]) -> int:
    """Replace this process by the command that taskset or numactl would start.

    Args:
        name: "taskset" or "numactl".
        words: its arguments.

    Returns an exit code where it starts nothing: for bad arguments, or `taskset --pid`.
    """
    try:
        cpus = (of_taskset if name == "taskset" else of_numactl)(words)
    except (ValueError, IndexError):
        return 1
    if not words:
        return 0
    if cpus is not None and cpus <= bits(os.environ.get(MASK, mask(cpus))):
        os.environ[MASK] = mask(cpus)
    os.execvp(words[0], words)


def mask(cpus: int) -> str:
    """Return the mask of the first CPUs, as Slurm writes it."""
    return f"{(1 << min(cpus, MOST_CPUS)) - 1:#x}"


def bits(mask: str) -> int:
    """Return the number of CPUs in a mask. Raises ValueError."""
    return int(mask, 16).bit_count()


def of_srun(option: str, task: int) -> dict[str, str]:
    """Return the variable with the CPUs that `srun --cpu-bind` names for a task, if it names any.

    Args:
        option: the option's value, such as "verbose,map_cpu:0,1", which gives each task one CPU.
        task: the task's number on its node.

    Raises ValueError for a mask that is none.
    """
    kind, _, named = option.rpartition(":")
    if kind.endswith("map_cpu"):
        return {MASK: mask(1)}
    if not kind.endswith("mask_cpu"):
        return {}
    masks = named.split(",")
    return {MASK: mask(bits(masks[task % len(masks)]))}


def of_taskset(words: list[str]) -> int | None:
    """Remove taskset's own arguments, and return the number of CPUs that they name."""
    as_list = False
    while words[0].startswith("-"):
        option = words.pop(0)
        letters = option.lstrip("-")[:1] if option.startswith("--") else option[1:]
        if "p" in letters:  # it changes a running process
            words.clear()
            return None
        as_list = as_list or "c" in letters
    cpus = words.pop(0)
    return count(cpus) if as_list else bits(cpus)


def of_numactl(words: list[str]) -> int | None:
    """Remove numactl's own arguments, and return the number of CPUs that they name, if any."""
    cpus = None
    while words[0].startswith("-"):
        option, equals, value = words.pop(0).partition("=")
        if option in ("-C", "--physcpubind"):
            cpus = count(value if equals else words.pop(0))
        elif option in VALUED and not equals:
            words.pop(0)
    return cpus


def count(text: str) -> int:
    """Return the number of CPUs in a list such as "0,2-5" or "0-7:2". Raises ValueError."""
    found: set[int] = set()
    for part in text.removeprefix("+").split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        found |= set(range(int(first), min(int(last or first), MOST_CPUS) + 1, int(step or 1)))
    return len(found)

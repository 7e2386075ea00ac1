"""Count the CPUs that taskset, numactl, and srun --cpu-bind leave to a command.

Standard library only and no relative imports: stand_in.py runs it without the environment.
"""

from __future__ import annotations

import os
import re
import sys

MASK = "SLURM_CPU_BIND_LIST"  # Slurm's variable for the CPUs that a task may use
MOST_CPUS = 4096
# Options of numactl: with a value, which may be attached, and those that start no command.
VALUED = ("-N", "--cpunodebind", "-m", "--membind", "-i", "--interleave", "-p", "--preferred",
          "-w", "--weighted-interleave", "-P", "--preferred-many", "-C", "--physcpubind")
SHOWS = ("-H", "--hardware", "-s", "--show", "-h", "--help", "-V", "--version")
PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6})(?::([1-9][0-9]{0,5}))?)?")  # of a list of CPUs


def run(record: str, name: str, words: list[str]) -> int:
    """Replace this process by the command that taskset or numactl would start.

    Args:
        record: the path of the record.
        name: "taskset" or "numactl".
        words: its arguments.

    Returns an exit code where it starts nothing: for bad arguments, `taskset --pid`, or `--help`.
    """
    try:
        cpus = taskset_cpus(record, words) if name == "taskset" else numactl_cpus(words)
    except (ValueError, IndexError) as error:
        why = error if isinstance(error, ValueError) else "it needs more arguments"
        print(f"{name}: {why}", file=sys.stderr)
        return 1
    if not words:
        return 0
    if cpus is not None:
        narrow(cpus)
    os.execvp(words[0], words)


def narrow(cpus: int) -> None:
    """Leave at most a number of CPUs to this process and the ones that it starts."""
    try:
        before = bits(os.environ[MASK])
    except (KeyError, ValueError):  # not set, or the script has set it to something else
        before = cpus
    os.environ[MASK] = mask(min(cpus, before))


def mask(cpus: int) -> str:
    """Return the mask of the first CPUs, as Slurm writes it."""
    return f"{(1 << min(cpus, MOST_CPUS)) - 1:#x}"


def bits(mask: str) -> int:
    """Return the number of CPUs in a mask. Raises ValueError for an invalid mask."""
    if not re.fullmatch("(?:0[xX])?[0-9a-fA-F]{1,1024}", mask) or not int(mask, 16):
        raise ValueError(f"invalid CPU mask: {mask[:50]!r}")
    return int(mask, 16).bit_count()


def srun_cpu_bind(option: str, task: int) -> dict[str, str]:
    """Return the variable with the CPUs that `srun --cpu-bind` names for a task, if it names any.

    Args:
        option: the option's value, such as "verbose,map_cpu:0,1", which gives each task one CPU.
        task: the task's number on its node.

    Raises ValueError for an invalid mask.
    """
    kind, _, named = option.rpartition(":")
    if kind.endswith("map_cpu"):
        return {MASK: mask(1)}
    if not kind.endswith("mask_cpu"):
        return {}
    masks = named.split(",")
    return {MASK: mask(bits(masks[task % len(masks)]))}


def taskset_cpus(record: str, words: list[str]) -> int | None:
    """Remove taskset's own arguments, and return the number of CPUs that they name, if any.

    Args:
        record: the path of the record, where it notes the CPUs of a running process.
        words: the arguments.

    Raises ValueError or IndexError for bad arguments.
    """
    given = ""  # its options' letters
    while words and words[0].startswith("-"):
        option = words.pop(0)
        given += option[2:3] if option.startswith("--") else option[1:]
    if set(given) & set("hVv") or ("p" in given and len(words) == 1):  # it only prints something
        words.clear()
        return None
    named, process = words.pop(0), words[0]
    cpus = count(named) if "c" in given else bits(named)
    if "p" not in given:
        return cpus
    if not re.fullmatch("[0-9]{1,9}", process):
        raise ValueError(f"invalid PID: {process[:50]!r}")
    pin(record, int(process), cpus)
    words.clear()
    return None


def numactl_cpus(words: list[str]) -> int | None:
    """Remove numactl's own arguments, and return the number of CPUs that they name, if any.

    Raises ValueError or IndexError for bad arguments.
    """
    cpus = None
    while words[0].startswith("-"):
        option, attached, value = words.pop(0).partition("=")
        if not option.startswith("--") and len(option) > 2:  # -C0-3
            option, attached, value = option[:2], "yes", option[2:] + attached + value
        if option in SHOWS:
            words.clear()
            return None
        if option not in VALUED:
            continue
        if not attached:
            value = words.pop(0)
        if option in ("-C", "--physcpubind"):
            cpus = None if value == "all" else count(value.removeprefix("+"))
    return cpus


def count(text: str) -> int:
    """Return the number of CPUs in a list such as "0,2-5" or "0-7:2".

    Raises ValueError for an invalid list.
    """
    named: set[int] = set()
    for part in text.split(","):
        cpus = range(0)
        if match := PART.fullmatch(part):
            first, last, step = match.groups()
            cpus = range(int(first), min(int(last or first) + 1, MOST_CPUS), int(step or 1))
        if not cpus:
            raise ValueError(f"invalid CPU list: {text[:50]!r}")
        named |= set(cpus)
    return len(named)


def pin(record: str, process: int, cpus: int) -> None:
    """Note that `taskset --pid` left a number of CPUs to a running process.

    Args:
        record: the path of the record.
        process: the process's ID.
        cpus: the number.
    """
    os.makedirs(f"{record}.pinned", exist_ok=True)
    with open(f"{record}.pinned/{process}", "w") as file:
        file.write(str(cpus))


def inherit(record: str, srun: int) -> None:
    """Narrow this process to the CPUs of the nearest process above it that was pinned, if any.

    Args:
        record: the path of the record.
        srun: the ID of the srun that it runs in, above which nothing is inherited; 0 without srun.
    """
    process = os.getpid()
    while process > 1 and process != srun:
        try:
            with open(f"{record}.pinned/{process}") as file:
                narrow(int(file.read()))
                return
        except (OSError, ValueError):  # it was not pinned
            pass
        try:
            with open(f"/proc/{process}/stat") as file:  # "7 (a name) S PARENT ..."
                process = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return

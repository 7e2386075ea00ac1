"""Parse the options of Slurm's commands that affect what a job script does.

Standard library only and no relative imports: stand_in.py runs it without the environment.
"""

from __future__ import annotations

import difflib
import os
import re

# Set by the recorder for each component of a heterogeneous job: Slurm has no variable for this.
GPUS_ON_NODE = "LAB_GPUS_ON_NODE"
# Options whose value, if any, must be attached with "=".
FLAGS = {
    "contiguous", "exact", "exclusive", "hold", "ignore-pbs", "kill-on-bad-exit", "label",
    "no-kill", "no-requeue", "overcommit", "overlap", "oversubscribe", "parsable", "preserve-env",
    "pty", "quiet", "reboot", "requeue", "spread-job", "test-only", "unbuffered", "use-min-nodes",
    "verbose", "help", "usage", "version", "immediate", "no-container-mount-home",
    "container-mount-home", "no-container-entrypoint", "container-writable",
    "no-container-remap-root", "container-remap-root", "get-user-env", "multi-prog", "no-allocate",
    "resv-ports", "send-libs",
}
VALUED = {
    "account", "acctg-freq", "array", "batch", "bb", "bbf", "bcast",
    "bcast-exclude", "begin", "chdir", "cluster",
    "cluster-constraint", "clusters", "comment", "compress", "constraint", "container",
    "container-env", "container-image", "container-mounts", "container-name", "container-save",
    "container-workdir", "core-spec", "cores-per-socket", "cpu-bind", "cpu-freq", "cpus-per-gpu",
    "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "epilog", "error",
    "exclude", "export", "export-file", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus",
    "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "het-group",
    "input", "job-name", "jobid", "kill-on-invalid-dep", "licenses", "mail-type", "mail-user",
    "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu", "mincpus", "mpi", "network",
    "nice", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu",
    "ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "partition", "power",
    "prefer", "priority",
    "profile", "prolog", "qos", "relative", "reservation", "signal", "slurmd-debug",
    "sockets-per-node", "switches", "task-epilog", "task-prolog", "thread-spec", "threads",
    "threads-per-core", "time", "time-min", "tmp", "tres-per-task", "uid", "wait-all-nodes",
    "wckey", "wrap", "x11",
}
# Options of a heterogeneous job's component that hold for the next ones, too, unless these set them
# (https://slurm.schedmd.com/heterogeneous_jobs.html).
INHERITED = {
    "account", "acctg-freq", "begin", "cluster-constraint", "clusters", "comment", "deadline",
    "delay-boot", "dependency", "distribution", "error", "exclude", "export", "export-file",
    "get-user-env", "gid", "hold", "ignore-pbs", "immediate", "input", "job-name", "mail-type",
    "mail-user", "mcs-label", "mem", "nice", "no-kill", "no-requeue", "open-mode", "output",
    "parsable", "priority", "profile", "qos", "quiet", "reboot", "requeue", "reservation",
    "signal", "test-only", "time", "time-min", "verbose", "wait-all-nodes", "wckey",
}
GPU_OPTIONS = ("gpus-per-node", "gres", "gpus-per-task", "gpus")
ALIASES = {"tasks-per-node": "ntasks-per-node"}
SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "H": "hold", "I": "immediate", "J": "job-name", "K": "kill-on-bad-exit",
    "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet",
    "S": "core-spec", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task",
    "d": "dependency", "e": "error", "h": "help", "i": "input", "k": "no-kill", "l": "label",
    "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos",
    "r": "relative", "s": "oversubscribe", "t": "time", "u": "unbuffered", "v": "verbose",
    "w": "nodelist", "x": "exclude",
}


class BadOption(Exception):
    """Raised for an option that Slurm would refuse; the message names the nearest valid one."""


def parse(words: list[str], command: str) -> tuple[dict[str, str], list[str]]:
    """Return the leading options of `words` by their long names, and the remaining words.

    A flag's value is "" unless one is attached. Unique prefixes are accepted, as by getopt.
    Raises BadOption.
    """
    valued = VALUED | ({"wait"} if command == "srun" else set())  # a flag of sbatch
    flags = FLAGS | ({"wait"} if command == "sbatch" else set())
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = _long_name(name, valued | flags, command)
        else:
            name = SHORT.get(word[1], "")
            if not name:
                raise BadOption(f"{command} has no option -{word[1]}")
            equals = value = word[2:].removeprefix("=") if name in valued else ""
            if name in flags and len(word) > 2:  # -lu is -l -u
                rest.insert(0, "-" + word[2:])
        if name in valued and not equals:
            if not rest:
                raise BadOption(f"{command} --{name} needs a value")
            value = rest.pop(0)
        options[name] = value
    return options, rest


def _long_name(name: str, known: set[str], command: str) -> str:
    if name in known or name in ALIASES:
        return ALIASES.get(name, name)
    starts = sorted(option for option in known if option.startswith(name))
    if len(starts) == 1:
        return starts[0]
    near = starts or difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean --{' or --'.join(near[:3])}?" if near else ""
    raise BadOption(f"{command} has no option --{name}{hint}")


def exported(setting: str | None, environment: dict[str, str]) -> dict[str, str]:
    """Return the environment that --export leaves. Slurm's own variables and the workspace's
    remain.

    Args:
        setting: "ALL", "NONE", or names with or without values.
        environment: the variables. The cluster sets LAB_HOME.
    """
    words = (setting or "ALL").split(",")
    kept = environment if "ALL" in words else {
        name: value for name, value in environment.items()
        if name.startswith(("SLURM", "LAB_")) or name in ("PATH", *words)}
    return kept | {name: value for name, equals, value in
                   (word.partition("=") for word in words) if equals and name}


def count(text: str | None, default: int) -> int:
    """Return a number of nodes or tasks: "2", "2-4" (the minimum), or "1k". Raises BadOption."""
    if text is None:
        return default
    match = re.fullmatch("([0-9]{1,6})(k?)(?:-[0-9]{1,6}k?)?", text)
    if not match or int(match[1]) == 0:
        raise BadOption(f"{text!r} is not a number of nodes or tasks; nearest: {default}")
    return int(match[1]) * (1024 if match[2] else 1)


def cpus(text: str, option: str = "cpus-per-task") -> int:
    """Return a number of CPUs.

    Args:
        text: the number.
        option: the option that it belongs to.

    Raises BadOption.
    """
    if not re.fullmatch("[0-9]{1,6}", text) or int(text) == 0:
        hint = "" if text else "; is a variable empty or misspelled?"
        raise BadOption(f"--{option}={text[:50]}: it must be a number of at least 1{hint}")
    return int(text)


def can_enter(folder: str) -> bool:
    """Return whether a program can start in a folder. Any text may be its name."""
    return os.path.isdir(folder) and os.access(folder, os.X_OK)


def gpus_of_nodes(directives: dict[str, str], nodes: int) -> tuple[int, int]:
    """Return the GPUs of the first and of the last node.

    --gpus-per-node=v100:2, --gres=gpu:v100:2, --gpus-per-task=1, and --gpus=4 of all nodes.

    Args:
        directives: the script's #SBATCH options.
        nodes: the number of nodes that they request.
    """
    for option in GPU_OPTIONS:
        parts = [part for part in directives.get(option, "").split(",")
                 if part and (option != "gres" or part.startswith("gpu"))]
        if not parts:
            continue
        gpus = sum(map(_gpus, parts))
        if option == "gpus":
            return -(-gpus // nodes), gpus // nodes
        if option == "gpus-per-task":
            gpus *= _tasks_per_node(directives, nodes)
        return gpus, gpus
    return 0, 0


def gpu_kind(directives: dict[str, str]) -> str:
    """Return the GPU kind that the options name, in lowercase: "a100" of --gpus-per-node=a100:2.

    Several kinds are separated by commas; it is "" if the options name none.
    """
    kinds = []
    for option in GPU_OPTIONS:
        for part in directives.get(option, "").lower().split(","):
            words = part.split(":")
            words = words[1:] if option == "gres" and words[0] == "gpu" else words
            if words and words[0] and not re.fullmatch("[0-9]+", words[0]) and (
                    option != "gres" or part.startswith("gpu:")):
                kinds.append(words[0])
    return ",".join(dict.fromkeys(kinds))


def _gpus(part: str) -> int:
    """Return the number in "gpu:v100:2", "v100:2" or "2"; without one, Slurm takes 1."""
    last = part.rpartition(":")[2]
    return int(last) if re.fullmatch("[0-9]{1,6}", last) else 1


def _tasks_per_node(directives: dict[str, str], nodes: int) -> int:
    try:
        if "ntasks" in directives:
            return count(directives["ntasks"], 1) // nodes
        return count(directives.get("ntasks-per-node"), 1)
    except BadOption:  # reported separately
        return 1


def of_component(variable: str, component: int) -> str:
    """Return the name of a heterogeneous job's variable for one of its components."""
    return f"{variable}_HET_GROUP_{component}"


def het_group(text: str, size: int) -> list[int]:
    """Return the components that srun's --het-group names, in order: "0,1" and "0-1" are 0 and 1.

    Args:
        text: the option's value.
        size: the number of the job's components.

    Raises BadOption.
    """
    every = "0" if size == 1 else f"0-{size - 1}"
    ranges = re.fullmatch(r"(\[?)([0-9]{1,4}(?:-[0-9]{1,4})?(?:,[0-9]{1,4}(?:-[0-9]{1,4})?)*)(\]?)",
                          text)
    if not ranges or bool(ranges[1]) != bool(ranges[3]):
        raise BadOption(f"--het-group={text[:50]}: it must be numbers of components, such as 0,1; "
                        f"nearest: {every}")
    numbers = {number for first, _, last in (part.partition("-") for part in ranges[2].split(","))
               for number in range(int(first), int(last or first) + 1)}
    if unknown := sorted(numbers - set(range(size))):
        has = "1 component" if size == 1 else f"{size} components"
        raise BadOption(f"--het-group={text[:50]}: this job has {has} ({every}), and {unknown[0]} "
                        f"is none of them; nearest: {every} (each `#SBATCH hetjob` line begins "
                        "another component)")
    return sorted(numbers)


def expand(hosts: str) -> list[str]:
    """Return the names in a host list: "slurmnode[1-2,5]" is slurmnode1, slurmnode2, slurmnode5."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?[^,\[]*", hosts):
        match = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not match:
            names.append(part)
            continue
        for piece in match[2].split(","):
            piece_range = re.fullmatch("([0-9]{1,9})(?:-([0-9]{1,9}))?", piece)
            if not piece_range:
                continue
            first, last = piece_range[1], piece_range[2] or piece_range[1]
            for number in range(int(first), min(int(last), int(first) + 4096) + 1):
                names.append(f"{match[1]}{number:0{len(first)}d}{match[3]}")
    return names

"""Compare what a job requested with the configuration that the trainer reports.

A job requests flags in its script, arguments after it, and GPUs. A flag in a variable that the
script forgets to pass on, arguments without "$@" in the script, or one rank for two GPUs: each run
trains without an error, but it trains something else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from job_monitor.logs import WORLD
from job_monitor.slurm import Job

# The flag, and what the table of arguments in the log calls it.
FLAGS = {"--tensor-model-parallel-size": "tensor_model_parallel_size",
         "--pipeline-model-parallel-size": "pipeline_model_parallel_size",
         "--micro-batch-size": "micro_batch_size", "--global-batch-size": "global_batch_size",
         "--train-iters": "train_iters", "--num-layers": "num_layers",
         "--hidden-size": "hidden_size", "--seq-length": "seq_length"}
ROW = re.compile(r"^ +(\w+) \.{2,} (.*)$")
END = "end of arguments"
NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
GPUS = "SLURM_GPUS_ON_NODE"
LONGEST = 2000  # characters of one value


@dataclass(frozen=True)
class Mismatch:
    what: str
    asked: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: asked for {self.asked}, the log says {self.found}"


def arguments(lines: Sequence[str]) -> dict[str, str]:
    """The table of arguments that the trainer prints, of its last start; empty: none yet."""
    values: dict[str, str] = {}
    inside = False
    for line in lines:
        if line.startswith("-") and line.strip("- ") == "arguments":
            inside, values = True, {}
        elif inside and END in line:
            inside = False
        elif inside and (match := ROW.match(line[:LONGEST])):
            values[match[1]] = match[2]
    return values


def configuration(lines: Sequence[str]) -> dict[str, str]:
    """The table, with the sizes that the very first line says."""
    values = arguments(lines)
    match = next((match for line in reversed(lines) if (match := WORLD.search(line))), None)
    names = ("world_size", "data_parallel_size", "tensor_model_parallel_size",
             "pipeline_model_parallel_size")
    return {**values, **(dict(zip(names, match.groups(), strict=True)) if match else {})}


def compare(job: Job, script: str, config: dict[str, str]) -> list[Mismatch]:
    """Return the differences between the request and the log's configuration.

    Flags that cannot be followed in the script (two values, a computed one) are left out.

    Args:
        job: the Slurm job.
        script: the text of its batch script.
        config: the configuration in the log, as text by flag.
    """
    found = []
    wanted = flags(script)
    wanted |= flags(_arguments(job.command))  # argparse takes the last one
    for flag, name in FLAGS.items():
        asked, read = wanted.get(flag), config.get(name)
        if asked is not None and read is not None and asked != read:
            found.append(Mismatch(flag, asked, read))
    world, ranks = config.get("world_size", ""), ranks_asked(job, script)
    if not world.isdigit():
        return found
    if ranks and ranks != int(world):
        found.append(Mismatch("ranks", f"{ranks} by the script's launcher", world))
    elif job.gpus and job.gpus != int(world):
        found.append(Mismatch("ranks", f"{job.gpus} GPUs", f"{world} rank(s)"))
    return found


def flags(text: str) -> dict[str, str]:
    """Flags with a whole number, a variable's among them, in a script or a command line."""
    text = _without_comments(text)
    known = _variables(text)
    values: dict[str, str] = {}
    several = set()
    for flag, value in re.findall(r"(?<![\w-])(--[\w-]+)[ =]+[\"']?([^\s\"')]+)", text):
        number = _number(value, known)
        if number is None or (flag in values and values[flag] != number):
            several.add(flag)
        else:
            values[flag] = number
    return {flag: value for flag, value in values.items() if flag not in several}


def ranks_asked(job: Job, script: str) -> int | None:
    """Return torchrun's --nnodes times --nproc_per_node, each of which defaults to 1.

    None means that the script has no torchrun, or that its sizes cannot be followed.
    """
    text = _without_comments(script).replace("--nproc-per-node", "--nproc_per_node")
    if not re.search(r"torchrun|torch\.distributed", text):
        return None
    known = _variables(text)
    if job.gpus_per_node:  # SLURM_NNODES is one component's, so it cannot be followed
        if len(set(job.gpus_per_node)) == 1 and job.gpus_per_node[0]:
            known[GPUS] = str(job.gpus_per_node[0])
    elif job.node_count:
        known |= dict.fromkeys(NODES, str(job.node_count))
        if job.gpus:
            known[GPUS] = str(job.gpus // job.node_count)
        known.setdefault(GPUS, "")  # Slurm does not set it for a job without GPUs
    sizes = []
    for flag in ("--nnodes", "--nproc_per_node"):
        values = {_number(value, known)
                  for value in re.findall(rf"{flag}[ =]+[\"']?([^\s\"']+)", text)}
        if len(values) > 1 or None in values:
            return None
        sizes.append(int(values.pop() or 1) if values else 1)
    return sizes[0] * sizes[1]


def _arguments(command: str) -> str:
    """Return the arguments after the script in a batch job's command."""
    return command.partition(" ")[2]


def _without_comments(text: str) -> str:
    joined = re.sub(r"\\\n\s*", " ", text)
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in joined.splitlines())


def _variables(text: str) -> dict[str, str]:
    """NAME=NUMBER and NAME=$OTHER of a script, those with one value only, wherever it is set."""
    found: dict[str, set[str]] = {}
    for name, value in re.findall(r"(?<![\w$-])([A-Za-z_]\w*)\+?=([^\s;&|)]*)", text):
        found.setdefault(name, set()).add(value)
    return {name: values.pop().strip("\"'") for name, values in found.items() if len(values) == 1}


def _number(text: str, known: dict[str, str]) -> str | None:
    """Return the whole number that a word stands for; None where it cannot be followed.

    Args:
        text: the number or a variable, which may have a default: "${NAME:-1}".
        known: the values of variables; "" where only a default counts.
    """
    for _ in range(5):  # a variable of a variable
        if re.fullmatch(r"[0-9]+", text):
            return str(int(text))
        match = re.fullmatch(r"\$(\w+)|\$\{(\w+)(?::-(\w+))?\}", text)
        name, default = (match[1] or match[2], match[3]) if match else ("", None)
        if name not in known:
            return None  # Slurm or the submitter's environment may have set it
        text = known[name] or default or ""
    return None


def words(command: str) -> list[str]:
    """A command line's words; by blanks where its quotes do not match."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()

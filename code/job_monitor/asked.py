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
         "--hidden-size": "hidden_size", "--num-attention-heads": "num_attention_heads",
         "--seq-length": "seq_length", "--balance": "balance", "--schedule": "schedule",
         "--fp16": "fp16", "--bf16": "bf16"}
SWITCHES = ("--fp16", "--bf16")  # flags without a value; the table has True or False
ROW = re.compile(r"^ +(\w+) \.{2,} (.*)$")
END = "end of arguments"
NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
GPUS = "SLURM_GPUS_ON_NODE"
LONGEST = 2000  # characters of one value
WORD = re.compile(r"[A-Za-z0-9][\w-]*")


@dataclass(frozen=True)
class Mismatch:
    what: str
    asked: str
    found: str

    def __str__(self) -> str:
        return f"{self.what}: asked for {self.asked}, the log says {self.found}"


@dataclass(frozen=True)
class Setting:
    """A setting as it was requested and as it runs; None where either is not known."""

    what: str
    asked: str | None
    found: str | None

    @property
    def differs(self) -> bool:
        return None not in (self.asked, self.found) and self.asked != self.found


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


def settings(job: Job, script: str, config: dict[str, str]) -> list[Setting]:
    """Return what was requested beside what runs, according to the log's configuration.

    Flags that cannot be followed in the script (two values, a computed one) count as not
    requested; the flags that neither side has are left out.

    Args:
        job: the Slurm job.
        script: the text of its batch script.
        config: the configuration in the log, as text by flag.
    """
    wanted = flags(script)
    wanted |= flags(_arguments(job.command))  # argparse takes the last one
    found = [Setting(flag, wanted.get(flag), config.get(name)) for flag, name in FLAGS.items()
             if flag in wanted or config.get(name) not in (None, "None", "False")]
    world, ranks = config.get("world_size"), ranks_asked(job, script)
    if ranks and world != str(ranks):
        found.append(Setting("ranks", f"{ranks} by the script's launcher", world))
    elif job.gpus and world != str(job.gpus):
        found.append(Setting("ranks", f"{job.gpus} GPUs", world and f"{world} rank(s)"))
    elif world:
        found.append(Setting("ranks", world if ranks or job.gpus else None, world))
    return found


def compare(job: Job, script: str, config: dict[str, str]) -> list[Mismatch]:
    """Return the differences between the request and the log's configuration, as `settings`."""
    return [Mismatch(one.what, one.asked, one.found) for one in settings(job, script, config)
            if one.differs]


def flags(text: str) -> dict[str, str]:
    """Return flags of a script or a command line whose values can be followed.

    These are whole numbers, a variable's among them, the words of FLAGS, and SWITCHES ("True").
    """
    text = _without_comments(text)
    known = _variables(text)
    values: dict[str, str] = {}
    several = set()
    for flag, value in re.findall(r"(?<![\w-])(--[\w-]+)[ =]+[\"']?(?!--)([^\s\"')]+)", text):
        followed = _number(value, known)
        if followed is None and flag in FLAGS and WORD.fullmatch(value):
            followed = value
        if followed is None or (flag in values and values[flag] != followed):
            several.add(flag)
        else:
            values[flag] = followed
    switches = {flag: "True" for flag in SWITCHES
                if re.search(rf"(?<![\w-]){flag}(?![\w-])", text)}
    return switches | {flag: value for flag, value in values.items() if flag not in several}


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

"""Compare what a job requested with the configuration that the trainer reports.

A job requests flags in its script, arguments on its command line, and GPUs. A script can forget to
pass on a variable with flags, drop its arguments because it lacks "$@", or start one rank for two
GPUs. Such a run reports no error, but it does not train what was requested.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from job_monitor import prefixes
from job_monitor.components import SlurmJob
from job_monitor.logs import WORLD

# Each flag, and its name in the log's table of arguments.
FLAGS = {"--tensor-model-parallel-size": "tensor_model_parallel_size",
         "--pipeline-model-parallel-size": "pipeline_model_parallel_size",
         "--micro-batch-size": "micro_batch_size", "--global-batch-size": "global_batch_size",
         "--train-iters": "train_iters", "--num-layers": "num_layers",
         "--hidden-size": "hidden_size", "--num-attention-heads": "num_attention_heads",
         "--seq-length": "seq_length", "--balance": "balance", "--schedule": "schedule",
         "--fp16": "fp16", "--bf16": "bf16"}
SWITCHES = ("--fp16", "--bf16")  # flags without a value; the table has True or False
TABLE_ROW = re.compile(r"^ +(\w+) \.{2,} (.*)$")
TABLE_END = "end of arguments"
NODE_VARIABLES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
GPU_VARIABLE = "SLURM_GPUS_ON_NODE"
MAX_LENGTH = 2000  # characters of a table row that are read
WORD = re.compile(r"[A-Za-z0-9][\w-]*")


@dataclass(frozen=True)
class JobSetting:
    """A setting as it was requested and as it runs.

    Attributes:
        name: a flag, or "ranks".
        requested: the value in the script or on the command line; None if it is not known.
        actual: the value in the log; None if it is not known.
    """

    name: str
    requested: str | None
    actual: str | None

    @property
    def differs(self) -> bool:
        return None not in (self.requested, self.actual) and self.requested != self.actual

    def __str__(self) -> str:
        return f"{self.name}: requested {self.requested}, but the log says {self.actual}"


def arguments(lines: Sequence[str]) -> dict[str, str]:
    """Return the table of arguments of the trainer's last start; empty if it printed none yet."""
    values: dict[str, str] = {}
    in_table = False
    for line in lines:
        line, _ = prefixes.split(line[:MAX_LENGTH])
        if line.startswith("-") and line.strip("- ") == "arguments":
            in_table, values = True, {}
        elif in_table and TABLE_END in line:
            in_table = False
        elif in_table and (match := TABLE_ROW.match(line)):
            values[match[1]] = match[2]
    return values


def configuration(lines: Sequence[str]) -> dict[str, str]:
    """Return the table of arguments, plus the group sizes from the trainer's first line."""
    values = arguments(lines)
    match = next((match for line in reversed(lines) if (match := WORLD.search(line))), None)
    names = ("world_size", "data_parallel_size", "tensor_model_parallel_size",
             "pipeline_model_parallel_size")
    return {**values, **(dict(zip(names, match.groups(), strict=True)) if match else {})}


def settings(job: SlurmJob, script: str, config: dict[str, str]) -> list[JobSetting]:
    """Return the requested and the actual value of every setting.

    A flag whose value in the script is computed or ambiguous counts as not requested. Flags that
    neither the request nor the log has are left out.

    Args:
        script: the text of the job's batch script.
        config: the configuration in the log.
    """
    wanted = flags(script)
    wanted |= flags(_script_arguments(job.command))  # argparse takes the last one
    pairs = [JobSetting(flag, wanted.get(flag), config.get(name)) for flag, name in FLAGS.items()
             if flag in wanted or config.get(name) not in (None, "None", "False")]
    world, ranks = config.get("world_size"), requested_ranks(job, script)
    if ranks and world != str(ranks):
        pairs.append(JobSetting("ranks", f"{ranks} by the script's launcher", world))
    elif job.gpus and world != str(job.gpus):
        pairs.append(JobSetting("ranks", f"{job.gpus} GPUs", world and f"{world} rank(s)"))
    elif world:
        pairs.append(JobSetting("ranks", world if ranks or job.gpus else None, world))
    return pairs


def mismatches(job: SlurmJob, script: str, config: dict[str, str]) -> list[JobSetting]:
    """Return the settings that differ; the arguments are those of `settings`."""
    return [setting for setting in settings(job, script, config) if setting.differs]


def flags(text: str) -> dict[str, str]:
    """Return the flags of a script or a command line whose values can be resolved.

    A value can be an integer, a variable that holds one, or, for FLAGS, a word. SWITCHES have the
    value "True". A flag with two different values is left out.
    """
    text = _without_comments(text)
    known = _variables(text)
    values: dict[str, str] = {}
    unresolved = set()
    for flag, value in re.findall(r"(?<![\w-])(--[\w-]+)[ =]+[\"']?(?!--)([^\s\"')]+)", text):
        resolved = _resolve_integer(value, known)
        if resolved is None and flag in FLAGS and WORD.fullmatch(value):
            resolved = value
        if resolved is None or (flag in values and values[flag] != resolved):
            unresolved.add(flag)
        else:
            values[flag] = resolved
    switches = {flag: "True" for flag in SWITCHES
                if re.search(rf"(?<![\w-]){flag}(?![\w-])", text)}
    return switches | {flag: value for flag, value in values.items() if flag not in unresolved}


def requested_ranks(job: SlurmJob, script: str) -> int | None:
    """Return torchrun's --nnodes times --nproc_per_node, each of which defaults to 1.

    Returns None if the script has no torchrun, or if its sizes cannot be resolved.
    """
    text = _without_comments(script).replace("--nproc-per-node", "--nproc_per_node")
    if not re.search(r"torchrun|torch\.distributed", text):
        return None
    known = _variables(text)
    if job.gpus_per_node:  # SLURM_NNODES counts one component's nodes, so the total is unknown
        if len(set(job.gpus_per_node)) == 1 and job.gpus_per_node[0]:
            known[GPU_VARIABLE] = str(job.gpus_per_node[0])
    elif job.node_count:
        known |= dict.fromkeys(NODE_VARIABLES, str(job.node_count))
        if job.gpus:
            known[GPU_VARIABLE] = str(job.gpus // job.node_count)
        known.setdefault(GPU_VARIABLE, "")  # Slurm does not set it for a job without GPUs
    sizes = []
    for flag in ("--nnodes", "--nproc_per_node"):
        values = {_resolve_integer(value, known)
                  for value in re.findall(rf"{flag}[ =]+[\"']?([^\s\"']+)", text)}
        if len(values) > 1 or None in values:
            return None
        sizes.append(int(values.pop() or 1) if values else 1)
    return sizes[0] * sizes[1]


def _script_arguments(command: str) -> str:
    """Return the arguments after the script in a batch job's command."""
    return command.partition(" ")[2]


def _without_comments(text: str) -> str:
    joined = re.sub(r"\\\n\s*", " ", text)
    return "\n".join(re.sub(r"(^|\s)#.*", "", line) for line in joined.splitlines())


def _variables(text: str) -> dict[str, str]:
    """Return the variables that a script assigns, without those it assigns different values."""
    assigned: dict[str, set[str]] = {}
    for name, value in re.findall(r"(?<![\w$-])([A-Za-z_]\w*)\+?=([^\s;&|)]*)", text):
        assigned.setdefault(name, set()).add(value)
    return {name: values.pop().strip("\"'") for name, values in assigned.items()
            if len(values) == 1}


def _resolve_integer(text: str, known: dict[str, str]) -> str | None:
    """Return the integer that a word evaluates to, or None if it cannot be resolved.

    Args:
        text: an integer or a variable, which may have a default: "${NAME:-1}".
        known: the values of variables; "" for an unset one, whose default applies.
    """
    for _ in range(5):  # a variable may hold another one
        if re.fullmatch(r"[0-9]+", text):
            return str(int(text))
        match = re.fullmatch(r"\$(\w+)|\$\{(\w+)(?::-(\w+))?\}", text)
        name, default = (match[1] or match[2], match[3]) if match else ("", None)
        if name not in known:
            return None  # Slurm or the submitter's environment may have set it
        text = known[name] or default or ""
    return None


def split_command(command: str) -> list[str]:
    """Split a command line as a shell does, or at spaces if its quotes are unbalanced."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()

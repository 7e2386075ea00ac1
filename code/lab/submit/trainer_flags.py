"""Translate a run's configuration into the trainer's flags, in groups.

The script has defaults for flags that the file need not mention, such as the learning rate. A flag
in the file's `flags` replaces the default, and also defaults that contradict it.
"""

from __future__ import annotations

import shlex
from functools import cache

from lab.submit.conf import Conf
from lab.submit.layout import RunLayout
from labcore.errors import LabError
from minimegatron.arguments.flag import alternatives, table_of
from minimegatron.arguments.parse import parse_command_line
from minimegatron.arguments.table import EstimateConfig
from minimegatron.errors import UserError

# The trainer's flags that keys of the file set.
KEYS = {"--num-layers": "layers", "--hidden-size": "hidden-size", "--seq-length": "sequence-length",
        "--num-attention-heads": "attention-heads", "--balance": "partition",
        "--pipeline-model-parallel-layout": "partition",
        "--max-position-embeddings": "sequence-length", "--device": "device",
        "--tensor-model-parallel-size": "tensor-parallel", "--fp16": "precision",
        "--pipeline-model-parallel-size": "pipeline-parallel", "--bf16": "precision",
        "--global-batch-size": "global-batch-size", "--micro-batch-size": "micro-batch-size",
        "--train-iters": "iterations", "--train-samples": "iterations", "--schedule": "schedule",
        "--virtual-network": "network", "--timeline": "profile"}
LOG_INTERVAL = 10
TIMELINE_ITERATION = 3  # the first without one-time costs of the start and the allocator


def groups(layout: RunLayout) -> dict[str, list[str]]:
    """Return the flags by the name of their array in the script, in the order of the command line.

    They are quoted for the shell, and some use the script's variables. The file's own come last.
    """
    conf = layout.conf
    given = _given(conf)
    default = {name: [f"{flag} {value}" for flag, value in flags if not _same(flag) & given]
               for name, flags in _defaults(conf).items()}
    return {**{name: [*map(shlex.quote, flags)] for name, flags in modeled(layout).items()},
            **default, "MORE": [*map(shlex.quote, conf.flags)]}


def modeled(layout: RunLayout) -> dict[str, list[str]]:
    """Return the flags that the file's keys set, by group: an estimate needs no more of them."""
    conf, shape = layout.conf, layout.conf.shape
    stages = str(conf.pipeline_parallel)
    return {
        "MODEL": ["--num-layers", str(shape.layers), "--hidden-size", str(shape.hidden_size),
                  "--num-attention-heads", str(shape.attention_heads),
                  "--seq-length", str(shape.sequence_length),
                  "--max-position-embeddings", str(shape.sequence_length)],
        "BATCH": ["--micro-batch-size", str(conf.micro_batch_size),
                  "--global-batch-size", str(conf.global_batch_size),
                  "--train-iters", str(conf.iterations)],
        "LAYOUT": ["--tensor-model-parallel-size", str(conf.tensor_parallel),
                   "--pipeline-model-parallel-size", stages, *_option("--balance", conf.partition),
                   *_option("--schedule", conf.schedule)],
        "PRECISION": [] if conf.precision == "fp32" else [f"--{conf.precision}"],
        "NETWORK": _option("--virtual-network", conf.network)}


def _defaults(conf: Conf) -> dict[str, list[tuple[str, str]]]:
    """Return the flags that the script has by default, by group, with their quoted values."""
    timeline = [] if not conf.profile else [
        ("--timeline", '"$FOLDER/timeline"'),
        ("--timeline-iteration", str(min(TIMELINE_ITERATION, conf.iterations)))]
    return {
        "OPTIMIZER": [("--lr", "1.5e-4"), ("--min-lr", "1e-5"), ("--lr-decay-style", "cosine"),
                      ("--lr-decay-iters", "320000"), ("--lr-warmup-fraction", "0.01"),
                      ("--weight-decay", "0.01"), ("--clip-grad", "1.0")],
        "TEXT": [("--data-path", '"$DATA/my-gpt2_text_document"'),
                 ("--vocab-file", '"$DATA/gpt2-vocab.json"'),
                 ("--merge-file", '"$DATA/gpt2-merges.txt"'), ("--split", "100,0,0")],
        "OUTPUT": [("--log-interval", str(min(LOG_INTERVAL, conf.iterations))),
                   ("--eval-iters", "0"),
                   ("--tensorboard-dir", f'"$LAB_HOME/megatron/tensorboard/{conf.name}"'),
                   *timeline]}


def uses_own_data(layout: RunLayout) -> bool:
    """Return whether the run trains on the text that `lab data` prepares."""
    return "data_path" not in _given(layout.conf)


def check(layout: RunLayout) -> None:
    """Raise LabError if `flags` has one that a key sets, or if the trainer would refuse the run."""
    conf = layout.conf
    for word in conf.flags:
        name = flags_by_spelling().get(word.partition("=")[0])
        if name == "--estimate":
            raise conf.error("flags", "--estimate trains nothing, so a job cannot have it",
                             f"lab estimate {conf.file.name}")
        if key := KEYS.get(name or ""):
            raise conf.error("flags", f"{word} is set by the key {key}", f"{key} = ...")
    text = " ".join(word for words in groups(layout).values() for word in words)
    try:
        parse_command_line(shlex.split(text), {"RANK": "0", "WORLD_SIZE": str(layout.world_size)})
    except UserError as error:
        raise LabError(f"{conf.file}: the trainer refuses this run: {error}") from None


@cache
def flags_by_spelling() -> dict[str, str]:
    """Return every spelling of the trainer's flags, with the flag's first name."""
    return {spelling: flag.spelling for flag in table_of(EstimateConfig).values()
            if not flag.derived for spelling in flag.spellings}


def _given(conf: Conf) -> set[str]:
    """Return the fields that the file's flags set, directly or through another flag."""
    names = flags_by_spelling()
    return {field for word in conf.flags if (name := names.get(word.partition("=")[0]))
            for field in _same(name)}


def _same(flag: str) -> set[str]:
    """Return the field of a flag, and the fields that follow from it."""
    field = flag[2:].replace("-", "_")
    return {field, *(end for end, fields in alternatives(EstimateConfig).items()
                     if field in fields)}


def _option(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []

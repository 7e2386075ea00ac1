"""Translate a run's configuration into the trainer's flags, in groups."""

from __future__ import annotations

from lab.submit.conf import Conf
from lab.submit.layout import RunLayout

# The trainer's flags that keys of the file set.
KEYS = {"--num-layers": "layers", "--hidden-size": "hidden-size", "--seq-length": "sequence-length",
        "--num-attention-heads": "attention-heads", "--balance": "partition",
        "--max-position-embeddings": "sequence-length", "--device": "device",
        "--tensor-model-parallel-size": "tensor-parallel", "--fp16": "precision",
        "--pipeline-model-parallel-size": "pipeline-parallel", "--bf16": "precision",
        "--global-batch-size": "global-batch-size", "--micro-batch-size": "micro-batch-size",
        "--train-iters": "iterations", "--schedule": "schedule", "--virtual-network": "network",
        "--timeline": "profile"}


def groups(layout: RunLayout) -> dict[str, list[str]]:
    """Return the flags by the name of their array in the script, without data and optimizer."""
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
        "NETWORK": _option("--virtual-network", conf.network),
        "MORE": list(conf.flags)}


def check_own(conf: Conf) -> None:
    """Raise LabError if `flags` has one that a key of the file sets."""
    for word in conf.flags:
        key = KEYS.get(word.partition("=")[0])
        if key:
            raise conf.error("flags", f"{word} is set by the key {key}", f"{key} = ...")


def _option(flag: str, value: str) -> list[str]:
    return [flag, value] if value else []

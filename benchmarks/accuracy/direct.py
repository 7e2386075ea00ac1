"""Predict rows of programs that are run as they are: compiled ones, since records hold eager mode
only, and short ones."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.accuracy.recording import UNLIMITED
from benchmarks.accuracy.rows import Prediction, cluster_of
from benchmarks.accuracy.trainer import NotYet
from virtualgpu.core.card import Card
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.packages.finder import CUDNN_ATTENTION

sys.path.insert(0, str(Path(__file__).parents[1]))  # of the programs, which are scripts
import gpt2_steps
import llama_fsdp
import timm_train

NCCL = 160 * 2**20  # bytes of NCCL's buffers, 16 channels of 10 MiB


def gpt2_seconds(row: Mapping) -> tuple[float, float]:
    """Run gpt2_steps; return the seconds of a step and the reserved memory in GiB."""
    names = ("layers", "hidden", "heads", "sequence", "vocabulary")
    return gpt2_steps.run([*(f"--{name}={row[name]}" for name in names),
                           f"--batch={row['micro_batch']}", *row["options"].split()])


def llama_seconds(row: Mapping) -> tuple[float, float]:
    """Run llama_fsdp with compiled layers; return what gpt2_seconds does."""
    names = ("layers", "hidden", "heads", "groups", "inner", "vocabulary", "sequence",
             "checkpointing")
    options = ("accumulation", "context", "parameters", "reductions", "logits", "sharding")
    switches = ("float8", "compile_loss")
    speed, memory = llama_fsdp.run([*(f"--{name}={row[name]}" for name in names), "--compile",
                                    f"--batch={row['micro_batch']}",
                                    *(f"--{name}={row[name]}" for name in options if name in row),
                                    *(f"--{name.replace('_', '-')}" for name in switches
                                      if row.get(name))])
    tokens = row["micro_batch"] * row.get("accumulation", 1) * row["sequence"]
    return tokens / row.get("context", 1) / speed, memory


def timm_seconds(row: Mapping) -> tuple[float, float]:
    """Run timm_train; return what gpt2_seconds does."""
    seconds = timm_train.run([row["model"], f"--batch={row['micro_batch']}",
                              f"--image={row['sequence']}", *row["options"].split()])
    return seconds, torch.cuda.max_memory_reserved() / 2**30


PROGRAMS = {"gpt2_steps": gpt2_seconds, "llama_fsdp_compiled": llama_seconds,
            "timm_train": timm_seconds}


def predict(program: str, row: Mapping, card: Card) -> Prediction:
    """Return the prediction for a row.

    Args:
        program: one of PROGRAMS.
        row: the row.
        card: the GPU model.

    Raises:
        NotYet: the row needs timm or torchao, which is not installed.
        SystemExit: the program failed.
    """
    if program == "timm_train" and importlib.util.find_spec("timm") is None:
        raise NotYet("timm is not installed")
    if row.get("float8") and importlib.util.find_spec("torchao") is None:
        raise NotYet("torchao is not installed")
    cluster = cluster_of(row, replace(card, name=f"{card.name}-unlimited", memory=UNLIMITED))
    settings = Settings(without=() if row.get("cudnn") else (CUDNN_ATTENTION,))
    (rank,) = run_ranks(cluster, settings, lambda: PROGRAMS[program](row), [0])
    if rank.error:
        raise SystemExit(f"{program}: {rank.error}")
    seconds, reserved = rank.value
    outside = card.context + (NCCL if cluster.world > 1 else 0)
    fits = rank.peak + outside <= card.memory
    reserved = min(reserved * 2**30, card.memory - outside)
    return Prediction(seconds, fits, rank.peak, reserved + outside, reserved)

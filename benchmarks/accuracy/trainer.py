"""Predict rows that are command lines of this repository's trainer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from benchmarks.accuracy.rows import Prediction, published_memory
from layout_estimator.estimate import Estimator
from minimegatron.arguments import Config, parse_arguments
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError
from virtualgpu.core.card import Card


class NotYet(Exception):
    """The trainer does not know one of a row's flags."""


def predict(row: Mapping, card: Card) -> Prediction:
    """Return the prediction for a row.

    Args:
        row: the row; "memory_stage" is the stage whose memory was published, if not the fullest.
        card: the GPU model.

    Raises:
        NotYet: the trainer does not know one of the row's flags.
    """
    model = estimator(card, row.get("network"), row.get("per_node", 8))
    config, vocabulary = configure(row), pad_vocab_size(row["vocabulary"], 128, row["tp"])
    found = model.estimate(config, vocabulary)
    allocated = found.peak[row["memory_stage"]] if "memory_stage" in row else max(found.peak)
    if published_memory(row) is None or not found.fits:
        return Prediction(found.seconds, found.fits, allocated)
    needed = list(map(sum, zip(found.peak, found.outside, strict=True)))
    fullest = needed.index(max(needed))
    unallocated = model.unallocated_bytes(config, vocabulary, fullest)
    used = min(needed[fullest] + unallocated, card.memory)
    return Prediction(found.seconds, found.fits, allocated, used, used - found.outside[fullest])


@cache
def estimator(card: Card, network: str | None = None, per_node: int = 8) -> Estimator:
    """Return an estimator, which reuses what it measured.

    Args:
        card: the GPU model.
        network: between nodes; None for the usual one.
        per_node: GPUs of a node.
    """
    return Estimator(card, network, per_node)


def configure(row: Mapping) -> Config:
    """Return the trainer's configuration of a row. Raises NotYet."""
    names = {"--num-layers": "layers", "--hidden-size": "hidden", "--num-attention-heads": "heads",
             "--seq-length": "sequence", "--max-position-embeddings": "sequence",
             "--tensor-model-parallel-size": "tp", "--pipeline-model-parallel-size": "pp",
             "--micro-batch-size": "micro_batch", "--global-batch-size": "batch"}
    flags = [text for name, key in names.items() for text in (name, str(row[key]))]
    flags += f"{row['flags']} {row.get('more_flags', '')}".split()
    flags += ["--lr", "1e-4", "--train-iters", "1", "--data-path", "-", "--vocab-file", "-",
              "--merge-file", "-"]
    try:
        return parse_arguments(flags, {"RANK": "0", "WORLD_SIZE": str(row["gpus"])})
    except UserError as error:
        raise NotYet(str(error)) from error

"""Index maps: three arrays that locate the tokens of every sample, as in Megatron-LM.

The documents of a split are repeated for as many epochs as the requested samples need, and
concatenated into one stream of tokens. Sample k is the s + 1 tokens at [k*s, k*s + s + 1) of that
stream: s inputs and s targets, so neighbors share one token.

    doc_idx      int32[epochs * documents]   the order in which documents are read
    sample_idx   int32[samples + 1, 2]       where sample k begins: (index into doc_idx, offset)
    shuffle_idx  uint32[samples]             the order in which samples are served

The random stream (numpy's RandomState, seeded once, documents before samples) and therefore every
value is Megatron's, `megatron/data/gpt_dataset.py` of 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """The number of epochs that a split is read, and the numbers of samples that follow."""

    tokens_per_epoch: int
    seq_length: int
    epochs: int
    samples_requested: int

    @property
    def samples(self) -> int:
        """Samples in all epochs together, at least as many as requested."""
        return (self.epochs * self.tokens_per_epoch - 1) // self.seq_length


def plan_epochs(tokens_per_epoch: int, seq_length: int, samples: int) -> Plan:
    """Return the plan with the fewest epochs e such that (e * tokens - 1) // s >= samples.

    Args:
        tokens_per_epoch: tokens of the split, at least one.
        seq_length: tokens of a sample, s.
        samples: least number of samples.
    """
    epochs = max(1, -(-(samples * seq_length + 1) // tokens_per_epoch))
    return Plan(tokens_per_epoch, seq_length, epochs, samples)


def build_sample_idx(sizes: np.ndarray, doc_idx: np.ndarray, plan: Plan) -> np.ndarray:
    """Return the start of every sample, [samples + 1, 2]: index into doc_idx, and offset.

    Sample k begins at token k*s of the stream, so one vectorized binary search over the documents'
    ends locates all of them, without a loop over samples or documents.

    Args:
        sizes: tokens of each document.
        doc_idx: order of the documents.
        plan: has the number of samples.
    """
    ends = np.cumsum(sizes[doc_idx], dtype=np.int64)
    starts = np.arange(plan.samples + 1, dtype=np.int64) * plan.seq_length
    # side="right": a token at the very end of a document belongs to the next one that has tokens.
    index = np.searchsorted(ends, starts, side="right")
    offset = starts - np.where(index > 0, ends[index - 1], 0)
    # Megatron's maps begin at (0, 0) even when the first documents are empty.
    index[0] = offset[0] = 0
    dtype = np.int32 if len(doc_idx) <= np.iinfo(np.int32).max else np.int64
    return np.stack([index, offset], axis=1).astype(dtype)


def shape_mismatch(documents: np.ndarray, plan: Plan, doc_idx: np.ndarray,
                   sample_idx: np.ndarray, shuffle_idx: np.ndarray) -> str | None:
    """Return why the maps' shapes do not match a plan, or None if they do."""
    if doc_idx.shape != (plan.epochs * len(documents),):
        return "they were built from another number of documents or epochs"
    if sample_idx.shape != (plan.samples + 1, 2) or shuffle_idx.shape != (plan.samples,):
        return "they were built from another number of tokens"
    return None


def mismatch(sizes: np.ndarray, documents: np.ndarray, plan: Plan, doc_idx: np.ndarray,
             sample_idx: np.ndarray, shuffle_idx: np.ndarray) -> str | None:
    """Return why maps of an earlier run do not match the data and the plan, or None if they do.

    The names of the files identify neither the data nor the split. The check costs about as much
    as building the maps.
    """
    if reason := shape_mismatch(documents, plan, doc_idx, sample_idx, shuffle_idx):
        return reason
    first, last = int(documents[0]), int(documents[-1])
    if doc_idx.min() != first or doc_idx.max() != last:
        return "they were built from other documents"
    if (np.bincount(doc_idx - first, minlength=len(documents)) != plan.epochs).any():
        return "they do not read every document once an epoch"
    if not np.array_equal(sample_idx, build_sample_idx(sizes, doc_idx, plan)):
        return "they were built from documents of other lengths"
    return None

"""Which tokens make up sample i: three maps, as Megatron-LM builds them.

The documents of a split are repeated for as many epochs as the wanted samples need, and read one
after another as one long stream of tokens. Sample k is the S + 1 tokens at [k*S, k*S + S + 1) of
that stream: S inputs and S targets, so neighbors share one token.

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
    """How many epochs a split is read, and what follows from it."""

    tokens_per_epoch: int
    seq_length: int
    epochs: int
    samples_wanted: int

    @property
    def samples(self) -> int:
        """Samples in all epochs together; at least as many as wanted."""
        return (self.epochs * self.tokens_per_epoch - 1) // self.seq_length

    @property
    def samples_before_last_epoch(self) -> int:
        # One epoch of no tokens would give -1 // S.
        return max(0, ((self.epochs - 1) * self.tokens_per_epoch - 1) // self.seq_length)

    @property
    def samples_per_epoch(self) -> int:
        return (self.tokens_per_epoch - 1) // self.seq_length

    @property
    def samples_from_last_epoch(self) -> int:
        return self.samples_wanted - self.samples_before_last_epoch

    @property
    def separate_last_epoch(self) -> bool:
        """Shuffle the last epoch apart: the run needs less than 80% of it.

        Were it mixed with the others, documents of all epochs would be cut off at random and
        some tokens never be seen.
        """
        return (self.epochs > 1
                and self.samples_from_last_epoch < int(0.80 * self.samples_per_epoch))


def plan(tokens_per_epoch: int, seq_length: int, samples: int) -> Plan:
    """The least number of epochs e with (e * tokens - 1) // S >= samples.

    `tokens_per_epoch` must be positive.
    """
    epochs = max(1, -(-(samples * seq_length + 1) // tokens_per_epoch))
    return Plan(tokens_per_epoch, seq_length, epochs, samples)


def build_doc_idx(documents: np.ndarray, plan: Plan, random: np.random.RandomState) -> np.ndarray:
    """`documents` once per epoch, shuffled (int32[epochs * documents])."""
    if plan.separate_last_epoch:
        parts = [np.tile(documents, plan.epochs - 1), np.array(documents)]
    else:
        parts = [np.tile(documents, plan.epochs)]
    parts = [part.astype(np.int32) for part in parts]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def build_sample_idx(sizes: np.ndarray, doc_idx: np.ndarray, plan: Plan) -> np.ndarray:
    """Where every sample begins ([samples + 1, 2]); `sizes` are the documents' lengths in tokens.

    Sample k begins at token k*S of the stream, so one binary search over the documents' ends
    places all of them, with no loop over samples or documents.
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


def build_shuffle_idx(plan: Plan, random: np.random.RandomState) -> np.ndarray:
    """The samples' order (uint32[samples]); a last epoch that is apart stays behind the others."""
    dtype = np.uint32 if plan.samples < np.iinfo(np.uint32).max - 1 else np.int64
    first = plan.samples_before_last_epoch if plan.separate_last_epoch else plan.samples
    parts = [np.arange(first, dtype=dtype), np.arange(first, plan.samples, dtype=dtype)]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def shape_mismatch(documents: np.ndarray, plan: Plan, doc_idx: np.ndarray,
                   sample_idx: np.ndarray, shuffle_idx: np.ndarray) -> str | None:
    """Why the maps' shapes do not belong to this plan; None when they do."""
    if doc_idx.shape != (plan.epochs * len(documents),):
        return "they were built from another number of documents or epochs"
    if sample_idx.shape != (plan.samples + 1, 2) or shuffle_idx.shape != (plan.samples,):
        return "they were built from another number of tokens"
    return None


def mismatch(sizes: np.ndarray, documents: np.ndarray, plan: Plan, doc_idx: np.ndarray,
             sample_idx: np.ndarray, shuffle_idx: np.ndarray) -> str | None:
    """Why maps from an earlier run do not belong to this data and plan; None when they do.

    Needed because the files' names tell neither the data nor the split they were built from.
    About as dear as building the maps.
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

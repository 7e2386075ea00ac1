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

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minimegatron.data.atomic import atomic_file
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.errors import UserError

Log = Callable[[str], object]


def parse_split(split: str) -> list[float]:
    """Return three weights that sum to 1; missing ones are 0. Separators are "," and "/".

    Raises UserError unless there are one to three non-negative numbers.
    """
    try:
        weights = [float(part) for part in split.split("," if "," in split else "/")]
    except ValueError:
        weights = []
    is_valid = all(0 <= weight < math.inf for weight in weights) and any(weights)
    if not is_valid or len(weights) > 3:
        raise UserError(f"--split {split!r} is not one to three numbers (training, validation, "
                        'test), not all 0; the usual value is "969, 30, 1"')
    weights += [0.0] * (3 - len(weights))
    return [weight / sum(weights) for weight in weights]


def split_boundaries(split: str, documents: int) -> list[int]:
    """Return [0, a, b, documents]: training is [0, a), validation [a, b), and test [b, documents).

    As in Megatron-LM, each part is rounded, and then all boundaries shift by the error of the last
    one. A boundary that would become negative, which Megatron-LM does not expect, is 0.

    Args:
        split: --split.
    """
    bounds = [0]
    for weight in parse_split(split):
        bounds.append(bounds[-1] + round(weight * documents))
    excess = bounds[-1] - documents
    return [0] + [max(0, bound - excess) for bound in bounds[1:]]


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


@dataclass(frozen=True)
class Split:
    """Everything that the index maps of one split depend on."""

    data: IndexedDataset
    name: str  # train, valid or test
    documents: np.ndarray  # int32, ascending, contiguous
    samples: int
    seq_length: int
    seed: int
    folder: str | None = None  # --data-cache-path; None is beside the data

    @property
    def plan(self) -> Plan:
        """Epochs and samples of this split. Raises UserError if it holds no token."""
        first, last = int(self.documents[0]), int(self.documents[-1])
        tokens = int(np.sum(self.data.sizes[first : last + 1], dtype=np.int64))
        if tokens == 0:
            raise UserError(f"the {self.name} split of {self.data.prefix} is {len(self.documents)} "
                            "empty document(s): change --split, or preprocess longer text")
        return plan_epochs(tokens, self.seq_length, self.samples)

    def path(self, kind: str) -> Path:
        """Return the file of an index map: "doc", "sample", or "shuffle"."""
        prefix = self.data.prefix
        if self.folder:
            prefix = os.path.join(self.folder, os.path.basename(prefix))
        return Path(f"{prefix}_{self.name}_indexmap_{self.samples}ns_{self.seq_length}sl_"
                    f"{self.seed}s_{kind}_idx.npy")


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


@dataclass(frozen=True)
class LastEpoch:
    """The last epoch of a plan, of which a run may need only a part."""

    plan: Plan

    @property
    def samples_before(self) -> int:
        """Samples of the epochs before it."""
        # One epoch of no tokens would give -1 // S.
        return max(0, ((self.plan.epochs - 1) * self.plan.tokens_per_epoch - 1)
                   // self.plan.seq_length)

    @property
    def samples_needed(self) -> int:
        return self.plan.samples_requested - self.samples_before

    @property
    def samples_per_epoch(self) -> int:
        return (self.plan.tokens_per_epoch - 1) // self.plan.seq_length

    @property
    def is_separate(self) -> bool:
        """Return whether it is shuffled separately, because less than 80% of it is needed.

        Shuffled together with the others, the samples left out could come from any epoch, so some
        tokens would be seen less often than others.
        """
        return self.plan.epochs > 1 and self.samples_needed < int(0.80 * self.samples_per_epoch)

    @property
    def boundary(self) -> int:
        """Return the number of samples that are shuffled together before the remaining ones."""
        return self.samples_before if self.is_separate else self.plan.samples


def build_index_maps(split: Split, log: Log) -> None:
    """Build and save the three index maps of a split.

    Files appear complete or not at all; two jobs that build the same ones write the same bytes.

    Args:
        split: the documents, samples, and seed.

    Raises:
        UserError: the folder is not writable; the message names --data-cache-path.
    """
    plan, last = split.plan, LastEpoch(split.plan)
    random = np.random.RandomState(split.seed)
    if plan.epochs == 1:
        log(" > only one epoch required, setting separate_last_epoch to False")
    else:
        word = "smaller" if last.is_separate else "larger"
        log(f" > last epoch number of samples ({last.samples_needed}) is {word} than 80% "
            f"of number of samples per epoch ({last.samples_per_epoch}), setting "
            f"separate_last_epoch to {last.is_separate}")
    started = time.perf_counter()
    doc_idx = build_doc_idx(split.documents, plan, random)
    _save(split, "doc", doc_idx, started, log)
    started = time.perf_counter()
    _save(split, "sample", build_sample_idx(split.data.sizes, doc_idx, plan),
          started, log)
    started = time.perf_counter()
    log(f" > building shuffle index with split [0, {last.boundary}) and [{last.boundary}, "
        f"{plan.samples}) ...")
    _save(split, "shuffle", build_shuffle_idx(plan, random), started, log)


def _save(split: Split, kind: str, values: np.ndarray, started: float, log: Log) -> None:
    path = split.path(kind)
    try:
        if split.folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            np.save(file, values)
    except OSError as error:
        raise UserError(
            f"cannot write the index map {path} ({error.strerror or error}): give a folder that "
            "this job can write and every node can read with --data-cache-path FOLDER") from error
    # The spelling is Megatron-LM's.
    log(f" > elasped time to build and save {kind}-idx mapping (seconds): "
        f"{time.perf_counter() - started:4f}")


def build_doc_idx(documents: np.ndarray, plan: Plan, random: np.random.RandomState
                  ) -> np.ndarray:
    """Return the shuffled order of documents, int32 [epochs * documents].

    Args:
        documents: numbers of the split's documents.
        plan: has the number of epochs.
        random: the generator, which `build_shuffle_idx` uses next.
    """
    if LastEpoch(plan).is_separate:
        parts = [np.tile(documents, plan.epochs - 1), np.array(documents)]
    else:
        parts = [np.tile(documents, plan.epochs)]
    parts = [part.astype(np.int32) for part in parts]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)


def build_shuffle_idx(plan: Plan, random: np.random.RandomState) -> np.ndarray:
    """Return the shuffled order of samples, uint32 [samples].

    Args:
        plan: has the number of samples; a separate last epoch stays behind the others.
        random: the generator, after `build_doc_idx`.
    """
    dtype = np.uint32 if plan.samples < np.iinfo(np.uint32).max - 1 else np.int64
    boundary = LastEpoch(plan).boundary
    parts = [np.arange(boundary, dtype=dtype), np.arange(boundary, plan.samples, dtype=dtype)]
    for part in parts:
        random.shuffle(part)
    return np.concatenate(parts)

"""Build index maps on the first run with a data set; later runs load them (gpt_dataset.py)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from minimegatron.data import index_maps
from minimegatron.data.atomic import atomic_file
from minimegatron.errors import UserError

if TYPE_CHECKING:
    from minimegatron.data.gpt_dataset import Log, Split


@dataclass(frozen=True)
class LastEpoch:
    """The last epoch of a plan, of which a run may need only a part."""

    plan: index_maps.Plan

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
    _save(split, "sample", index_maps.build_sample_idx(split.data.sizes, doc_idx, plan),
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


def build_doc_idx(documents: np.ndarray, plan: index_maps.Plan, random: np.random.RandomState
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


def build_shuffle_idx(plan: index_maps.Plan, random: np.random.RandomState) -> np.ndarray:
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

"""Samples of s + 1 tokens, taken from a stream of shuffled documents.

Rank 0 builds the index maps while the others wait at `barrier`; then every rank maps them into
memory. The files have the names that Megatron-LM gave them in 2021:
`{prefix}_{train|valid|test}_indexmap_{N}ns_{S}sl_{seed}s_{doc|sample|shuffle}_idx.npy`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist

from minimegatron.data import index_maps
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.split import split_boundaries
from minimegatron.errors import UserError

if TYPE_CHECKING:
    from minimegatron.context import Context

Log = Callable[[str], object]

KINDS = ("doc", "sample", "shuffle")

# Seconds to wait for a file of rank 0 after the barrier: network file systems show it later.
VISIBILITY_TIMEOUT = 15.0


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
    def plan(self) -> index_maps.Plan:
        """Epochs and samples of this split. Raises UserError if it holds no token."""
        first, last = int(self.documents[0]), int(self.documents[-1])
        tokens = int(np.sum(self.data.sizes[first : last + 1], dtype=np.int64))
        if tokens == 0:
            raise UserError(f"the {self.name} split of {self.data.prefix} is {len(self.documents)} "
                            "empty document(s): change --split, or preprocess longer text")
        return index_maps.plan_epochs(tokens, self.seq_length, self.samples)

    def path(self, kind: str) -> Path:
        """Return the file of an index map: "doc", "sample", or "shuffle"."""
        prefix = self.data.prefix
        if self.folder:
            prefix = os.path.join(self.folder, os.path.basename(prefix))
        return Path(f"{prefix}_{self.name}_indexmap_{self.samples}ns_{self.seq_length}sl_"
                    f"{self.seed}s_{kind}_idx.npy")


class GPTDataset:
    """The samples of one split: `dataset[i]["text"]` is an int64 array [s + 1]."""

    def __init__(self, split: Split, vocab_size: int | None = None):
        """Map the index maps, which must exist, into memory.

        Args:
            split: the documents, samples, and seed.
            vocab_size: if given, tokens beyond it raise UserError when a sample is read, instead of
                an index error in the model.

        Raises UserError if the index maps do not match the data.
        """
        self.split, self.vocab_size = split, vocab_size
        self.doc_idx, self.sample_idx, self.shuffle_idx = _load_maps(split)
        reason = index_maps.shape_mismatch(
            split.documents, split.plan, self.doc_idx, self.sample_idx, self.shuffle_idx)
        if reason:
            raise UserError(f"the index maps {split.path('*')} do not belong to the data: "
                            f"{reason}; remove them and start again")

    def __len__(self) -> int:
        return len(self.shuffle_idx)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        sample = int(self.shuffle_idx[index])
        first, offset, last, end = map(int, self.sample_idx[sample : sample + 2].flat)
        get = self.split.data.get
        if first == last:
            parts = [get(self.doc_idx[first], offset, end - offset + 1)]
        else:
            parts = [get(self.doc_idx[first], offset)]
            parts += [get(document) for document in self.doc_idx[first + 1 : last]]
            parts.append(get(self.doc_idx[last], 0, end + 1))
        text = np.concatenate(parts).astype(np.int64)
        self._check_tokens(text)
        return {"text": text}

    def _check_tokens(self, text: np.ndarray) -> None:
        if self.vocab_size is not None and not 0 <= text.min() <= text.max() < self.vocab_size:
            token = text.min() if text.min() < 0 else text.max()
            raise UserError(
                f"{self.split.data.data_path} holds token {token}, but the vocabulary has "
                f"{self.vocab_size:,} entries: it was made with another one; give the "
                "--vocab-file and --merge-file that preprocess_data.py was given")


def build_datasets(ctx: Context, vocab_size: int
                   ) -> tuple[GPTDataset, GPTDataset | None, GPTDataset | None]:
    """Build the training, validation, and test data; every rank must call it.

    Raises UserError if the data are corrupted or hold tokens beyond `vocab_size`, or
    if --split leaves nothing to train on.
    """
    config, batch = ctx.config, ctx.config.global_batch_size
    validations = config.train_iters // config.eval_interval + 1
    samples = (config.train_iters * batch, validations * config.eval_iters * batch,
               config.eval_iters * batch)
    train, valid, test = build_train_valid_test_datasets(
        config.data_path, config.split, config.seq_length, config.seed, samples,
        is_builder=ctx.grid.rank == 0, barrier=dist.barrier, log=ctx.print_rank_0,
        cache_path=config.data_cache_path, vocab_size=vocab_size)
    if train is None:
        raise UserError(f"--split {config.split} leaves no document of {config.data_path} to train "
                        "on; nearest: --split 100,0,0")
    return train, valid, test


def build_train_valid_test_datasets(
    prefix: str | os.PathLike[str], split: str, seq_length: int, seed: int,
    num_samples: Sequence[int], is_builder: bool, barrier: Callable[[], object], log: Log,
    cache_path: str | None = None, vocab_size: int | None = None,
) -> tuple[GPTDataset | None, GPTDataset | None, GPTDataset | None]:
    """Build the training, validation, and test data; every rank must call it.

    Args:
        prefix: --data-path.
        split: --split, the shares of the three data sets.
        seq_length: tokens of a sample, s.
        seed: of the shuffled order.
        num_samples: least number of samples of each data set.
        is_builder: true on exactly one rank per file system, which writes the index maps.
        barrier: called exactly once, even if building fails, so that no rank is left waiting.
        cache_path: --data-cache-path, the folder of the index maps; None means beside the data.
        vocab_size: entries of the tokenizer.

    Returns three data sets; None for a split without documents. Raises UserError for corrupted
    data, a bad split, a folder that is not writable, or index maps that this node cannot see.
    """
    _log_targets(num_samples, log)
    splits: list[Split | None] = []
    try:
        data = _open(prefix, log)
        splits = _splits(data, split, seq_length, seed, num_samples, cache_path, log)
        if is_builder:
            for part in filter(None, splits):
                if not _valid_maps_exist(part, part.plan, log):
                    from minimegatron.data.build_index_maps import build_index_maps

                    build_index_maps(part, log)
    finally:
        barrier()
    datasets = tuple(part and _load_dataset(part, vocab_size, log) for part in splits)
    log("> finished creating GPT datasets ...")
    return datasets


def _log_targets(num_samples: Sequence[int], log: Log) -> None:
    log("> building train, validation, and test datasets ...")
    log(" > datasets target sizes (minimum size):")
    for name, samples in zip(("train:     ", "validation:", "test:      "), num_samples,
                             strict=True):
        log(f"    {name} {samples}")


def _open(prefix: str | os.PathLike[str], log: Log) -> IndexedDataset:
    log(" > building dataset index ...")
    started = time.perf_counter()
    log("    reading sizes...")
    data = IndexedDataset(prefix)
    log(f" > finished creating indexed dataset in {time.perf_counter() - started:4f} seconds")
    log(f"    number of documents: {len(data)}")
    return data


def _splits(data: IndexedDataset, split: str, seq_length: int, seed: int,
            num_samples: Sequence[int], cache_path: str | None, log: Log) -> list[Split | None]:
    bounds = split_boundaries(split, len(data))
    splits: list[Split | None] = []
    log(" > dataset split:")
    for number, (title, name) in enumerate(
            (("train", "train"), ("validation", "valid"), ("test", "test"))):
        start, stop = bounds[number], bounds[number + 1]
        log(f"    {title}:")
        log(f"     document indices in [{start}, {stop}) total of {stop - start} documents")
        documents = np.arange(start, stop, dtype=np.int32)
        splits.append(Split(data, name, documents, num_samples[number], seq_length, seed,
                            cache_path) if stop > start else None)
    return splits


def _valid_maps_exist(split: Split, plan: index_maps.Plan, log: Log) -> bool:
    if not all(split.path(kind).is_file() for kind in KINDS):
        log(" > WARNING: could not find index map files, building the indices on rank 0 ...")
        return False
    try:
        reason = index_maps.mismatch(split.data.sizes, split.documents, plan, *_load_maps(split))
    except UserError as error:
        reason = str(error)
    if reason:
        log(f" > WARNING: the index map files do not belong to this data ({reason}), building "
            "the indices again on rank 0 ...")
    return reason is None


def _load_dataset(split: Split, vocab_size: int | None, log: Log) -> GPTDataset:
    for kind in KINDS:
        log(f" > loading {kind}-idx mapping from {split.path(kind)}")
    dataset = GPTDataset(split, vocab_size)
    log(f"    total number of samples: {len(dataset) + 1}")
    log(f"    total number of epochs: {split.plan.epochs}")
    return dataset


def _load_maps(split: Split) -> list[np.ndarray]:
    """Map the three index maps into memory. Raises UserError if one is missing or corrupted."""
    return [_load_map(split.path(kind)) for kind in KINDS]


def _load_map(path: Path) -> np.ndarray:
    deadline = time.monotonic() + VISIBILITY_TIMEOUT
    while not path.is_file():
        if time.monotonic() > deadline:
            raise UserError(
                f"node {socket.gethostname()} cannot see the index map {path}: the building rank "
                "failed (see its message), or the folder is on a disk of that node alone; put "
                "the data, or --data-cache-path FOLDER, where every node sees it")
        time.sleep(0.2)
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"the index map {path} is corrupted ({error}): remove it and start "
                        "again") from error

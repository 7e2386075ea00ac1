"""Samples of s + 1 tokens, taken from a stream of shuffled documents.

Rank 0 builds the index maps while the others wait at a barrier; then every rank maps them into
memory. The files have the names that Megatron-LM gave them in 2021:
`{prefix}_{train|valid|test}_indexmap_{N}ns_{S}sl_{seed}s_{doc|sample|shuffle}_idx.npy`.
"""

from __future__ import annotations

import socket
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch.distributed as dist

from minimegatron.data import index_maps
from minimegatron.data.index_maps import Log, Split, split_boundaries
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.errors import UserError

if TYPE_CHECKING:
    from minimegatron.arguments import Config
    from minimegatron.context import Context

SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # in the log: in file names
KINDS = ("doc", "sample", "shuffle")

# Seconds to wait for a file of rank 0 after the barrier: network file systems show it later.
VISIBILITY_TIMEOUT = 15.0


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

    Raises UserError if the data are corrupted or hold tokens beyond `vocab_size`, if --split leaves
    nothing to train on, if the index maps cannot be written, or if this node cannot see them.
    """
    log, splits = ctx.print_rank_0, []
    try:
        splits = _splits(ctx.config, log)
        for split in filter(None, splits if ctx.grid.rank == 0 else ()):
            if not _valid_maps_exist(split, log):
                from minimegatron.data.index_maps import build_index_maps

                build_index_maps(split, log)
    finally:
        dist.barrier()  # even if building fails, so that no rank is left waiting
    if splits[0] is None:
        raise UserError(f"--split {ctx.config.split} leaves no document of {ctx.config.data_path} "
                        "to train on; nearest: --split 100,0,0")
    datasets = tuple(split and _load_dataset(split, vocab_size, log) for split in splits)
    log("> finished creating GPT datasets ...")
    return datasets


def _splits(config: Config, log: Log) -> list[Split | None]:
    """Open the data, and return the training, validation, and test split; None if one is empty."""
    batch = config.global_batch_size
    validations = config.train_iters // config.eval_interval + 1
    samples = (config.train_iters * batch, validations * config.eval_iters * batch,
               config.eval_iters * batch)
    log("> building train, validation, and test datasets ...")
    log(" > datasets target sizes (minimum size):")
    for title, count in zip(SPLITS, samples, strict=True):
        log(f"    {title + ':':11} {count}")
    log(" > building dataset index ...")
    started = time.perf_counter()
    log("    reading sizes...")
    data = IndexedDataset(config.data_path)
    log(f" > finished creating indexed dataset in {time.perf_counter() - started:4f} seconds")
    log(f"    number of documents: {len(data)}")
    splits: list[Split | None] = []
    log(" > dataset split:")
    bounds = pairwise(split_boundaries(config.split, len(data)))
    for title, count, (start, stop) in zip(SPLITS, samples, bounds, strict=True):
        log(f"    {title}:")
        log(f"     document indices in [{start}, {stop}) total of {stop - start} documents")
        splits.append(Split(data, SPLITS[title], np.arange(start, stop, dtype=np.int32), count,
                            config.seq_length, config.seed, config.data_cache_path)
                      if stop > start else None)
    return splits


def _valid_maps_exist(split: Split, log: Log) -> bool:
    """Check the index maps of an earlier run, and log why they must be built (again)."""
    if not all(split.path(kind).is_file() for kind in KINDS):
        log(" > WARNING: could not find index map files, building the indices on rank 0 ...")
        return False
    try:
        reason = index_maps.mismatch(split.data.sizes, split.documents, split.plan,
                                     *_load_maps(split))
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

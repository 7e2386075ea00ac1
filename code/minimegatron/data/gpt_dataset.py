"""Training samples: S + 1 tokens each, cut from a stream of shuffled documents.

Rank 0 builds the index maps and the others wait: `build_train_valid_test_datasets` builds, calls
the trainer's `barrier`, and loads. The files have the names that Megatron gave them in 2021:
`{prefix}_{train|valid|test}_indexmap_{N}ns_{S}sl_{seed}s_{doc|sample|shuffle}_idx.npy`.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from minimegatron.data import index_maps
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.split import split_boundaries
from minimegatron.errors import UserError

Say = Callable[[str], object]

KINDS = ("doc", "sample", "shuffle")

# How long a rank waits, after the barrier, for a file that rank 0 wrote: network file systems
# show a new file to the other nodes some seconds late.
PATIENCE = 15.0


@dataclass(frozen=True)
class Request:
    """One split's samples: everything that its index maps depend on."""

    data: IndexedDataset
    name: str  # train, valid or test
    documents: np.ndarray  # int32, ascending, contiguous
    samples: int
    seq_length: int
    seed: int
    folder: str | None = None  # --data-cache-path; None is beside the data

    @property
    def plan(self) -> index_maps.Plan:
        """Raises UserError when the split holds no token."""
        first, last = int(self.documents[0]), int(self.documents[-1])
        tokens = int(np.sum(self.data.sizes[first : last + 1], dtype=np.int64))
        if tokens == 0:
            raise UserError(f"the {self.name} split of {self.data.prefix} is {len(self.documents)} "
                            "empty document(s): change --split, or preprocess longer text")
        return index_maps.plan(tokens, self.seq_length, self.samples)

    def path(self, kind: str) -> Path:
        prefix = self.data.prefix
        if self.folder:
            prefix = os.path.join(self.folder, os.path.basename(prefix))
        return Path(f"{prefix}_{self.name}_indexmap_{self.samples}ns_{self.seq_length}sl_"
                    f"{self.seed}s_{kind}_idx.npy")


class GPTDataset(Dataset):
    """Sample i of a split: `dataset[i]["text"]` is int64[S + 1].

    Built from index maps that are on disk already. `vocab_size`, where given, bounds the tokens:
    data made with another vocabulary raises UserError instead of an index error in the model.
    """

    def __init__(self, request: Request, vocab_size: int | None = None):
        self.request, self.vocab_size = request, vocab_size
        self.doc_idx, self.sample_idx, self.shuffle_idx = _load(request)
        reason = index_maps.shape_mismatch(
            request.documents, request.plan, self.doc_idx, self.sample_idx, self.shuffle_idx)
        if reason:
            raise UserError(f"the index maps {request.path('*')} do not belong to the data: "
                            f"{reason}; remove them and start again")

    def __len__(self) -> int:
        return len(self.shuffle_idx)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        sample = int(self.shuffle_idx[index])
        (first, offset), (last, end) = self.sample_idx[sample : sample + 2].tolist()
        get = self.request.data.get
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
            raise UserError(
                f"{self.request.data.data_path} holds token {text.max()}, but the vocabulary has "
                f"{self.vocab_size:,} entries: it was made with another one; give the "
                "--vocab-file and --merge-file that preprocess_data.py was given")

    def __reduce__(self) -> tuple:
        # As with IndexedDataset: a worker maps the files again.
        return GPTDataset, (self.request, self.vocab_size)


def build_train_valid_test_datasets(
    prefix: str | os.PathLike[str], split: str, seq_length: int, seed: int,
    num_samples: Sequence[int], is_builder: bool, barrier: Callable[[], object], say: Say,
    cache_path: str | None = None, vocab_size: int | None = None,
) -> tuple[GPTDataset | None, GPTDataset | None, GPTDataset | None]:
    """The three datasets; None for a split that gets no documents.

    `num_samples` are the (train, valid, test) samples wanted; a dataset holds at least as many.
    Exactly one process per file system sets `is_builder`; all call this, and each calls `barrier`
    exactly once, also when building fails, so that none is left waiting. `say` prints a line.

    Raises UserError (text for the user) on bad data, a bad split, an unwritable folder, or maps
    that another node built where this one cannot see them.
    """
    _say_targets(num_samples, say)
    requests: list[Request | None] = []
    try:
        data = _open(prefix, say)
        requests = _requests(data, split, seq_length, seed, num_samples, cache_path, say)
        if is_builder:
            for request in filter(None, requests):
                if not _good_maps_exist(request, request.plan, say):
                    from minimegatron.data.build_index_maps import build_index_maps

                    build_index_maps(request, say)
    finally:
        barrier()
    datasets = []
    for request in requests:
        if request is not None:
            say_loading(request, say)
        datasets.append(GPTDataset(request, vocab_size) if request else None)
        if request is not None:
            say(f"    total number of samples: {len(datasets[-1]) + 1}")
            say(f"    total number of epochs: {request.plan.epochs}")
    say("> finished creating GPT datasets ...")
    return tuple(datasets)


def _say_targets(num_samples: Sequence[int], say: Say) -> None:
    say("> building train, validation, and test datasets ...")
    say(" > datasets target sizes (minimum size):")
    for name, samples in zip(("train:     ", "validation:", "test:      "), num_samples,
                             strict=True):
        say(f"    {name} {samples}")


def _open(prefix: str | os.PathLike[str], say: Say) -> IndexedDataset:
    say(" > building dataset index ...")
    started = time.perf_counter()
    say("    reading sizes...")
    data = IndexedDataset(prefix)
    say(f" > finished creating indexed dataset in {time.perf_counter() - started:4f} seconds")
    say(f"    number of documents: {len(data)}")
    return data


def _requests(data: IndexedDataset, split: str, seq_length: int, seed: int,
              num_samples: Sequence[int], cache_path: str | None,
              say: Say) -> list[Request | None]:
    bounds = split_boundaries(split, len(data))
    requests: list[Request | None] = []
    say(" > dataset split:")
    for part, (title, name) in enumerate(
            (("train", "train"), ("validation", "valid"), ("test", "test"))):
        start, stop = bounds[part], bounds[part + 1]
        say(f"    {title}:")
        say(f"     document indices in [{start}, {stop}) total of {stop - start} documents")
        documents = np.arange(start, stop, dtype=np.int32)
        requests.append(Request(data, name, documents, num_samples[part], seq_length, seed,
                                cache_path) if stop > start else None)
    return requests


def _good_maps_exist(request: Request, plan: index_maps.Plan, say: Say) -> bool:
    if not all(request.path(kind).is_file() for kind in KINDS):
        say(" > WARNING: could not find index map files, building the indices on rank 0 ...")
        return False
    try:
        reason = index_maps.mismatch(request.data.sizes, request.documents, plan, *_load(request))
    except UserError as error:
        reason = str(error)
    if reason:
        say(f" > WARNING: the index map files do not belong to this data ({reason}), building "
            "the indices again on rank 0 ...")
    return reason is None


def say_loading(request: Request, say: Say) -> None:
    for kind in KINDS:
        say(f" > loading {kind}-idx mapping from {request.path(kind)}")


def _load(request: Request) -> list[np.ndarray]:
    """The three maps, memory-mapped. Raises UserError for one that is missing or damaged."""
    return [_load_map(request.path(kind)) for kind in KINDS]


def _load_map(path: Path) -> np.ndarray:
    deadline = time.monotonic() + PATIENCE
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
        raise UserError(f"the index map {path} is damaged ({error}): remove it and start "
                        "again") from error

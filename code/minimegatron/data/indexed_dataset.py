"""Megatron's memory-mapped token files: `PREFIX.bin` (tokens) and `PREFIX.idx` (their positions).

The bytes are those of Megatron-LM's `MMapIndexedDataset`. The `.bin` holds the tokens of all
sequences back to back. The `.idx` is little-endian:

    9 bytes  b"MMIDIDX\\x00\\x00"      int32[N]  tokens in each sequence
    uint64   version, 1               int64[N]  byte position of each sequence in the .bin
    uint8    dtype code               int64[D]  document boundaries: 0, ..., N
    uint64   N, number of sequences
    uint64   D, number of boundaries (documents + 1)
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from minimegatron.errors import UserError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Megatron also numbers two float types (6 and 7); token files never hold those.
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}

REBUILD = "write the pair again with preprocess_data.py (or `lab data` for the course's own text)"


class IndexedDataset:
    """Reads `prefix.bin` and `prefix.idx` without loading them: both are memory-mapped.

    dataset[i] is sequence i, a read-only array of tokens. The maps, all read-only:
    `sizes` int32[N] in tokens, `pointers` int64[N] in bytes, `document_indices` int64[D].

    Raises UserError if a file is missing, truncated, or corrupted, or if the two do not belong
    together; the message names the file, the problem, and the remedy.
    """

    def __init__(self, prefix: str | os.PathLike[str]):
        self.prefix = str(prefix)
        self.index_path, self.data_path = Path(self.prefix + ".idx"), Path(self.prefix + ".bin")
        self._require_files()
        index = _map(self.index_path, np.dtype(np.uint8))
        self.dtype, sequences, boundaries = _read_header(self.index_path, index)
        ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * boundaries])
        self.sizes = index[ends[0] : ends[1]].view("<i4")
        self.pointers = index[ends[1] : ends[2]].view("<i8")
        self.document_indices = index[ends[2] : ends[3]].view("<i8")
        self._check_index()
        self.tokens = _map(self.data_path, self.dtype)

    def _require_files(self) -> None:
        for path in (self.index_path, self.data_path):
            if path.is_file():
                continue
            message = f"no data file {path}"
            stem, suffix = os.path.splitext(self.prefix)
            if suffix in (".bin", ".idx") and Path(stem + ".idx").is_file():
                message += f": give the prefix without its ending, {stem}"
            else:
                message += (f": --data-path {self.prefix} stands for two files, {self.prefix}.bin "
                            f"and {self.prefix}.idx; {REBUILD}")
            raise UserError(message)

    def _check_index(self) -> None:
        """Check the three maps against each other and against the length of the .bin."""
        size, itemsize = self.data_path.stat().st_size, self.dtype.itemsize
        if len(self.sizes) and int(self.sizes.min()) < 0:
            self._corrupted(f"sequence {int(np.argmin(self.sizes))} has a negative length")
        ends = np.cumsum(self.sizes, dtype=np.int64) * itemsize
        total = int(ends[-1]) if len(ends) else 0
        if total != size:
            word = "short" if size < total else "long"
            raise UserError(
                f"{self.data_path} holds {size:,} bytes, but {self.index_path} describes {total:,} "
                f"({len(self.sizes):,} sequences of {self.dtype.name}): the .bin is too {word}, "
                f"or the two were not written together; {REBUILD}"
            )
        if len(ends) and (self.pointers[0] != 0 or (self.pointers[1:] != ends[:-1]).any()):
            self._corrupted("the byte positions do not follow from the sequences' lengths")
        bounds = self.document_indices
        if not len(bounds) or bounds[0] != 0 or bounds[-1] != len(self.sizes):
            self._corrupted(f"the document boundaries do not run from 0 to {len(self.sizes):,}")
        if (bounds[1:] < bounds[:-1]).any():
            self._corrupted("the document boundaries do not ascend")

    def _corrupted(self, problem: str) -> None:
        raise UserError(f"{self.index_path} is corrupted: {problem}; {REBUILD}")

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, sequence: int) -> np.ndarray:
        return self.get(sequence)

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> np.ndarray:
        """Return a view of a sequence's tokens.

        Args:
            sequence: its number.
            offset: first token.
            length: number of tokens; all that remain by default.
        """
        size = int(self.sizes[sequence])
        stop = size if length is None else offset + length
        if not 0 <= offset <= stop <= size:
            raise IndexError(f"tokens [{offset}, {stop}) of a sequence of {size} tokens")
        start = int(self.pointers[sequence]) // self.dtype.itemsize
        return self.tokens[start + offset : start + stop]


def _map(path: Path, dtype: np.dtype) -> np.ndarray:
    if path.stat().st_size == 0:  # mmap refuses empty files
        return np.empty(0, dtype)
    try:
        return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _read_header(path: Path, index: np.ndarray) -> tuple[np.dtype, int, int]:
    """Return the dtype and the numbers of sequences and boundaries.

    Raises UserError if the header is invalid, or if the file has another length than it implies.
    """
    if len(index) < HEADER.size:
        raise UserError(f"{path} is truncated: {len(index)} bytes, the header alone has "
                        f"{HEADER.size}; {REBUILD}")
    magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    if magic != MAGIC:
        raise UserError(f"{path} is not a Megatron mmap index (it begins with {magic!r} instead "
                        f"of {MAGIC!r}); {REBUILD}")
    if version != VERSION:
        raise UserError(f"{path} has format version {version}; only version 1 is known; {REBUILD}")
    if code not in DTYPES:
        known = ", ".join(f"{key} {np.dtype(value).name}" for key, value in DTYPES.items())
        raise UserError(f"{path} has dtype code {code}; tokens are one of: {known}; {REBUILD}")
    expected = HEADER.size + 12 * sequences + 8 * boundaries
    if len(index) != expected:
        word = "truncated" if len(index) < expected else "too long"
        raise UserError(f"{path} is {word}: {len(index):,} bytes, but {sequences:,} sequences and "
                        f"{boundaries:,} boundaries take {expected:,}; {REBUILD}")
    return np.dtype(DTYPES[code]), sequences, boundaries

"""The format of Megatron's token files: `PREFIX.bin` (tokens) and `PREFIX.idx` (their positions).

The bytes are those of Megatron-LM's `MMapIndexedDataset`. The `.bin` holds the tokens of all
sequences back to back. The `.idx` is little-endian:

    9 bytes  b"MMIDIDX\x00\x00"      int32[N]  tokens in each sequence
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


def index_length(sequences: int, boundaries: int) -> int:
    """Return the length of an .idx file, in bytes."""
    return HEADER.size + 12 * sequences + 8 * boundaries


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
        try:
            self._map_files()
        except (OSError, ValueError, KeyError, struct.error) as error:
            raise UserError(explain(self.prefix, error)) from error

    def _map_files(self) -> None:
        """Map both files; one of the caught errors means that they are not a pair."""
        index = _map(self.index_path, np.dtype(np.uint8))
        magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
        if (magic, version, len(index)) != (MAGIC, VERSION, index_length(sequences, boundaries)):
            raise ValueError("invalid header")
        self.dtype = np.dtype(DTYPES[code])
        ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * boundaries])
        self.sizes = index[ends[0] : ends[1]].view("<i4")
        self.pointers = index[ends[1] : ends[2]].view("<i8")
        self.document_indices = index[ends[2] : ends[3]].view("<i8")
        self.tokens = _map(self.data_path, self.dtype)
        starts = np.cumsum(np.append(0, self.sizes), dtype=np.int64) * self.dtype.itemsize
        documents = self.document_indices
        if ((self.sizes < 0).any() or starts[-1] != self.data_path.stat().st_size
                or (self.pointers != starts[:-1]).any() or (documents[1:] < documents[:-1]).any()
                or not len(documents) or (documents[0], documents[-1]) != (0, sequences)):
            raise ValueError("inconsistent index")

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
    return np.memmap(path, dtype=dtype, mode="r").view(np.ndarray)


REBUILD = "write the pair again with preprocess_data.py (or `lab data` for the course's own text)"


def explain(prefix: str, error: Exception) -> str:
    """Return what is wrong with a pair of files, and the remedy.

    Args:
        prefix: --data-path.
        error: raised when the files were mapped.
    """
    index_path, data_path = Path(prefix + ".idx"), Path(prefix + ".bin")
    for path in (index_path, data_path):
        if not path.is_file():
            return missing_file(prefix, path)
    if isinstance(error, OSError):
        return f"cannot read {index_path} and {data_path}: {error}"
    index = np.fromfile(index_path, np.uint8)
    return (header_problem(index_path, index) or length_problem(index_path, data_path, index)
            or f"{index_path} is corrupted: {maps_problem(index)}; {REBUILD}")


def missing_file(prefix: str, path: Path) -> str:
    """Return why there is no file `path` of a pair, and the prefix to give instead, if any."""
    stem, suffix = os.path.splitext(prefix)
    if suffix in (".bin", ".idx") and Path(stem + ".idx").is_file():
        return f"no data file {path}: give the prefix without its ending, {stem}"
    return (f"no data file {path}: --data-path {prefix} stands for two files, {prefix}.bin and "
            f"{prefix}.idx; {REBUILD}")


def header_problem(path: Path, index: np.ndarray) -> str | None:
    """Return why the header of an .idx file, uint8 [bytes], is invalid; None if it is valid."""
    if len(index) < HEADER.size:
        return (f"{path} is truncated: {len(index)} bytes, the header alone has {HEADER.size}; "
                f"{REBUILD}")
    magic, version, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    if magic != MAGIC:
        return (f"{path} is not a Megatron mmap index (it begins with {magic!r} instead of "
                f"{MAGIC!r}); {REBUILD}")
    if version != VERSION:
        return f"{path} has format version {version}; only version 1 is known; {REBUILD}"
    if code not in DTYPES:
        known = ", ".join(f"{key} {np.dtype(value).name}" for key, value in DTYPES.items())
        return f"{path} has dtype code {code}; tokens are one of: {known}; {REBUILD}"
    expected = index_length(sequences, boundaries)
    if len(index) != expected:
        word = "truncated" if len(index) < expected else "too long"
        return (f"{path} is {word}: {len(index):,} bytes, but {sequences:,} sequences and "
                f"{boundaries:,} boundaries take {expected:,}; {REBUILD}")
    return None


def length_problem(index_path: Path, data_path: Path, index: np.ndarray) -> str | None:
    """Return why the .bin file has another length than a valid .idx implies; None if it has not."""
    dtype, sizes, _, _ = parsed(index)
    size, total = data_path.stat().st_size, int(sizes.sum(dtype=np.int64)) * dtype.itemsize
    if size == total or (sizes < 0).any():
        return None
    word = "short" if size < total else "long"
    return (f"{data_path} holds {size:,} bytes, but {index_path} describes {total:,} "
            f"({len(sizes):,} sequences of {dtype.name}): the .bin is too {word}, or the two were "
            f"not written together; {REBUILD}")


def maps_problem(index: np.ndarray) -> str:
    """Return how the maps of an .idx file with a valid header contradict each other."""
    dtype, sizes, pointers, documents = parsed(index)
    if (sizes < 0).any():
        return f"sequence {int(np.argmin(sizes))} has a negative length"
    starts = np.cumsum(np.append(0, sizes), dtype=np.int64)[:-1] * dtype.itemsize
    if (pointers != starts).any():
        return "the byte positions do not follow from the sequences' lengths"
    if not len(documents) or documents[0] != 0 or documents[-1] != len(sizes):
        return f"the document boundaries do not run from 0 to {len(sizes):,}"
    return "the document boundaries do not ascend"


def parsed(index: np.ndarray) -> tuple[np.dtype, np.ndarray, np.ndarray, np.ndarray]:
    """Return the dtype of the tokens, and the three maps, of an .idx file with a valid header."""
    _, _, code, sequences, boundaries = HEADER.unpack(index[: HEADER.size].tobytes())
    ends = np.cumsum([HEADER.size, 4 * sequences, 8 * sequences, 8 * boundaries])
    return (np.dtype(DTYPES[code]), index[ends[0] : ends[1]].view("<i4"),
            index[ends[1] : ends[2]].view("<i8"), index[ends[2] : ends[3]].view("<i8"))

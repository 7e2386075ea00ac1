"""Megatron's memory-mapped token files, whose format index_format.py describes."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np

from minimegatron.data.index_format import DTYPES, HEADER, MAGIC, VERSION, index_length
from minimegatron.errors import UserError


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
            from minimegatron.data.unreadable_dataset import explain

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

"""Write Megatron's memory-mapped token files; minimegatron/data/indexed_dataset.py reads them."""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from types import TracebackType

import numpy as np

from minimegatron.data.atomic import AtomicFile, sync_folder
from minimegatron.data.indexed_dataset import DTYPES, HEADER, MAGIC, VERSION

CODES = {np.dtype(dtype): code for code, dtype in DTYPES.items()}


def token_dtype(vocab_size: int) -> np.dtype:
    """Return the dtype that Megatron stores tokens in: uint16 below 65,500 entries, else int32."""
    return np.dtype(np.uint16 if vocab_size < 65500 else np.int32)


class IndexedDatasetWriter:
    """Writes a .bin/.idx pair, which appears under its name when `close` returns.

    Use it as a context manager. If the block raises, no file is left behind, and an older pair of
    the same name is unchanged.

    Raises:
        OSError: the files cannot be written, for example because the disk is full.
    """

    def __init__(self, prefix: str | os.PathLike[str], dtype: np.dtype | type):
        """Args:
            prefix: the start of both paths.
            dtype: the dtype of the tokens.
        """
        self.dtype = np.dtype(dtype)
        self.sizes, self.boundaries = array("i"), array("q", [0])
        self.tokens = 0
        self._index = AtomicFile(Path(f"{prefix}.idx"))
        try:
            self._data = AtomicFile(Path(f"{prefix}.bin"))
        except BaseException:
            self._index.discard()
            raise

    def add_sequence(self, tokens: list[int] | np.ndarray) -> None:
        """Append one sequence. Raises ValueError if a token does not fit the dtype."""
        values = np.asarray(tokens, dtype=np.int64)
        limits = np.iinfo(self.dtype)
        if len(values) and not limits.min <= values.min() <= values.max() <= limits.max:
            raise ValueError(f"token {values.max()} (or {values.min()}) does not fit {self.dtype}")
        self._data.file.write(values.astype(self.dtype.newbyteorder("<")).tobytes())
        self.sizes.append(len(values))
        self.tokens += len(values)

    def end_document(self) -> None:
        """Combine the sequences since the last call into one document."""
        self.boundaries.append(len(self.sizes))

    def close(self) -> None:
        sizes = np.asarray(self.sizes, dtype="<i4")
        pointers = np.zeros(len(sizes), dtype="<i8")
        np.cumsum(sizes[:-1], dtype=np.int64, out=pointers[1:])
        self._index.file.write(HEADER.pack(
            MAGIC, VERSION, CODES[self.dtype], len(sizes), len(self.boundaries)))
        for values in (sizes, pointers * self.dtype.itemsize, np.asarray(self.boundaries, "<i8")):
            self._index.file.write(values.tobytes())
        for part in (self._data, self._index):
            part.finish()
        # The two renames are not atomic together. So the old index goes first: a crash in between
        # leaves a .bin without .idx, which the reader refuses, never a new .bin with an old .idx.
        self._index.target.unlink(missing_ok=True)
        self._data.rename()
        self._index.rename()
        sync_folder(self._index.target.parent)

    def discard(self) -> None:
        self._data.discard()
        self._index.discard()

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.discard()  # does nothing after `close`

"""Explain why a pair of .bin and .idx files cannot be read.

Only a run that cannot read its data imports this file.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from minimegatron.data.index_format import DTYPES, HEADER, MAGIC, VERSION, index_length

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

"""The format of Megatron's token files: `PREFIX.bin` (tokens) and `PREFIX.idx` (their positions).

The bytes are those of Megatron-LM's `MMapIndexedDataset`. The `.bin` holds the tokens of all
sequences back to back. The `.idx` is little-endian:

    9 bytes  b"MMIDIDX\\x00\\x00"      int32[N]  tokens in each sequence
    uint64   version, 1               int64[N]  byte position of each sequence in the .bin
    uint8    dtype code               int64[D]  document boundaries: 0, ..., N
    uint64   N, number of sequences
    uint64   D, number of boundaries (documents + 1)
"""

from __future__ import annotations

import struct

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")

# Megatron also numbers two float types (6 and 7); token files never hold those.
DTYPES = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def index_length(sequences: int, boundaries: int) -> int:
    """Return the length of an .idx file, in bytes."""
    return HEADER.size + 12 * sequences + 8 * boundaries

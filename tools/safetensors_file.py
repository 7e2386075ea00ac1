"""Hugging Face's format of weights, which is small enough to need no package.

The header's length (8 bytes, little-endian), a JSON header with every tensor's dtype, shape and
place, the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import BinaryIO

import torch

from minimegatron.data.atomic import atomic_file
from minimegatron.errors import UserError

Weights = dict[str, torch.Tensor]

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write(path: Path, weights: Weights) -> None:
    """Write weights of DTYPES. Raises OSError."""
    codes = {dtype: code for code, dtype in DTYPES.items()}
    header: dict = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, weight in weights.items():
        header[name] = {"dtype": codes[weight.dtype], "shape": list(weight.shape),
                        "data_offsets": [at, at := at + weight.nbytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    with atomic_file(path) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for weight in weights.values():
            file.write(weight.contiguous().view(torch.uint8).numpy().tobytes())


def read(path: Path) -> Weights:
    """Raises UserError for a file that is cut or makes no sense."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > path.stat().st_size:
                raise ValueError("its header is cut off")
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {name: read_tensor(file, 8 + length, entry) for name, entry in header.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        raise UserError(f"{path} is not a whole safetensors file: {error}") from error


def read_tensor(file: BinaryIO, start: int, entry: dict) -> torch.Tensor:
    """entry: {dtype, shape, data_offsets: [begin, end) from byte `start`}."""
    dtype, (begin, end) = DTYPES.get(entry["dtype"]), entry["data_offsets"]
    if dtype is None:
        raise ValueError(f"dtype {entry['dtype']} is none of {', '.join(DTYPES)}")
    if end - begin != math.prod(entry["shape"]) * dtype.itemsize or begin < 0:
        raise ValueError(f"shape {entry['shape']} does not take bytes {begin} to {end}")
    file.seek(start + begin)
    data = bytearray(file.read(end - begin))
    if len(data) != end - begin:
        raise ValueError("it is cut off")
    return torch.frombuffer(data, dtype=dtype).reshape(entry["shape"])

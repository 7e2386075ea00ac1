"""Prints what megatron-core makes of some documents, and tiktoken of some texts, as JSON.

    pip install --no-deps --target /tmp/core megatron-core==0.16.1 einops packaging
    pip install --target /tmp/tik tiktoken==0.14.0
    PYTHONPATH=/tmp/core:/tmp/tik:code:. python -m tests.oracles.make_data_files \
        > tests/oracles/data_files.json

tiktoken shares no code with the `tokenizers` library, which encodes for us.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from corpus_tools.train_vocabulary import train_merges
from minimegatron.data.tokenizer import byte_alphabet
from minimegatron.data.vocabulary import END_OF_DOCUMENT

# Name: (sizes of the documents, dtype). Tokens count up.
PAIRS = {"short": ([3, 1, 4, 1, 5, 9, 2, 6], np.uint16), "wide": ([70_000, 3], np.int32),
         "with empty ones": ([0, 5, 0, 0, 7, 0], np.uint16)}
# Name: (pair, first and last document of the split, samples wanted, sequence length, seed).
MAPS = {"one epoch": ("short", (0, 8), 6, 4, 1234), "a part": ("short", (2, 7), 4, 5, 7),
        "epochs as one": ("short", (0, 8), 14, 4, 1),
        "last epoch apart": ("short", (0, 8), 16, 4, 3),
        "long samples": ("short", (0, 8), 5, 40, 1234),
        "gaps": ("with empty ones", (1, 6), 9, 3, 5)}
TEXTS = [
    "the theory of the other thing, then; that's what they'll say",
    "  two  blanks,\ttabs\t\tand\n\n\nlines \n ends with blanks   ",
    "12345 x2 3.14159 2026-11-21 100,000", "it's WE'LL don't I'd you've we're 'tis ''s",
    "naïve café, Ünïcödé: 東京 and Ελληνικά, Привет",
    "emoji 👩‍🚀🚀 and a\u00a0hard\u2003blank\u2028",
    "<|endoftext|> is text", "if x[0]!=y:\r\n    return --z**2  # why?", "", " ", "\x00\x7f",
]
WORDS = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|"  # Radford et al. 2019
         r"\s+(?!\S)|\s+")


def documents(pair: str) -> list[np.ndarray]:
    sizes, dtype = PAIRS[pair]
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end).astype(dtype)
            for size, end in zip(sizes, ends, strict=True)]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def their_pair(pair: str, prefix: Path) -> dict[str, str]:
    """Written by megatron-core: {"idx": the bytes in hex, "bin": sha256}."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=PAIRS[pair][1])
    for tokens in documents(pair):
        builder.add_item(torch.from_numpy(tokens.astype(np.int64)))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return {"idx": Path(f"{prefix}.idx").read_bytes().hex(), "bin": digest(Path(f"{prefix}.bin"))}


class NoTokenizer:
    """The attributes that a data set asks its tokenizer for."""

    vocab_size, eod, pad, unique_identifiers = 70_003, 0, -1, {}


def their_maps(name: str, prefix: Path) -> dict[str, list]:
    """megatron-core's {"doc", "sample", "shuffle", "texts": all samples in order}."""
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDataset
    from megatron.core.datasets.utils import Split

    _, (first, last), samples, seq_length, seed = MAPS[name]
    config = GPTDatasetConfig(
        random_seed=seed, sequence_length=seq_length, blend=([str(prefix)], None), split="1,0,0",
        path_to_cache=str(prefix.parent / "cache"), tokenizer=NoTokenizer(),
        reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False)
    data = GPTDataset(IndexedDataset(str(prefix)), str(prefix),
                      np.arange(first, last, dtype=np.int32), samples, Split.train, config)
    texts = [[*data[i]["tokens"].tolist(), int(data[i]["labels"][-1])] for i in range(len(data))]
    return {"doc": data.document_index.tolist(), "sample": data.sample_index.tolist(),
            "shuffle": data.shuffle_index.tolist(), "texts": texts}


def their_ids(merges: list) -> list[list[int]]:
    """tiktoken's ids of TEXTS, in the vocabulary of these merges."""
    import tiktoken

    alphabet = byte_alphabet()
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [byte for byte in range(256) if byte not in printable]
    spelled = {letter: bytes([byte]) for letter, byte in zip(alphabet, order, strict=True)}
    ranks = {spelled[letter]: rank for rank, letter in enumerate(alphabet)}
    for rank, pair in enumerate(merges, start=256):
        ranks[b"".join(spelled[letter] for letter in "".join(pair))] = rank
    encoding = tiktoken.Encoding("ours", pat_str=WORDS, mergeable_ranks=ranks,
                                 special_tokens={END_OF_DOCUMENT: 256 + len(merges)})
    return [encoding.encode_ordinary(text) for text in TEXTS]


def made() -> dict:
    """All of it. Raises ImportError where a package is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        pairs = {name: their_pair(name, Path(folder) / name) for name in PAIRS}
        maps = {name: their_maps(name, Path(folder) / MAPS[name][0]) for name in MAPS}
    merges = [list(pair) for pair in train_merges(TEXTS[::2], 80)]
    return {"pairs": pairs, "maps": maps, "merges": merges, "ids": their_ids(merges)}


if __name__ == "__main__":
    import tiktoken
    from megatron.core import __version__

    print(json.dumps({"megatron-core": __version__, "tiktoken": tiktoken.__version__, **made()}))

"""Train a byte-level BPE vocabulary, and write it in GPT-2's format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from minimegatron.data.tokenizer import byte_alphabet
from minimegatron.data.vocabulary import END_OF_DOCUMENT

HEADER = "#version: 0.2"


def train_merges(texts: Iterable[str], count: int) -> list[tuple[str, str]]:
    """Return the `count` most frequent merges, in order; fewer if the text does not have as many.

    It is deterministic: the same texts give the same merges, for any number of threads. The first
    n merges are the same for any `count` of at least n.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + count, min_frequency=1, show_progress=False, special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    merges, seen = [], {END_OF_DOCUMENT}
    for pair in json.loads(tokenizer.to_str())["model"]["merges"]:
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        # Two merges can spell the same token, but GPT-2's format has one entry per token.
        if left + right not in seen:
            seen.add(left + right)
            merges.append((left, right))
    return merges[:count]


def write_vocabulary(merges: list[tuple[str, str]], vocab_file: Path, merge_file: Path) -> None:
    """Write GPT-2's two files: the bytes, then the merges in order, `<|endoftext|>` last.

    Args:
        merges: pairs of tokens, the most frequent first.
        vocab_file: path of vocab.json.
        merge_file: path of merges.txt.
    """
    tokens = byte_alphabet() + [left + right for left, right in merges] + [END_OF_DOCUMENT]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    lines = [HEADER, *(f"{left} {right}" for left, right in merges)]
    # GPT-2's own vocab.json is ASCII with \u escapes; its merges.txt is UTF-8.
    vocab_file.write_text(json.dumps(vocabulary), encoding="ascii")
    merge_file.write_text("\n".join(lines) + "\n", encoding="utf-8")

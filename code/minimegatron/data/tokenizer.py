"""GPT-2's byte-level BPE: text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

import os

from minimegatron.data.vocabulary import HINT, Vocabulary
from minimegatron.errors import UserError


class GPT2BPETokenizer(Vocabulary):
    """Encodes text as token IDs, and decodes them.

    Raises UserError if a file is missing, or not what its flag stands for.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], merge_file: str | os.PathLike[str]):
        super().__init__(vocab_file, merge_file)
        self._tokenizer = _byte_level_bpe(self.ids, self.merges)

    def tokenize(self, text: str) -> list[int]:
        """Return the IDs of plain text; `<|endoftext|>` in it is text like any other, not `eod`."""
        return self._tokenizer.encode(text).ids

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the IDs of many texts, on RAYON_NUM_THREADS threads (default: every core)."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def detokenize(self, ids: list[int]) -> str:
        """Return the text; bytes that are not UTF-8 (part of a character) become U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # No special token is registered: the library would find it inside plain text.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def build_tokenizer(kind: str, vocab_file: str | None, merge_file: str | None) -> GPT2BPETokenizer:
    """Return the tokenizer that --tokenizer-type names.

    Raises UserError if there is no such type, or if a file is not given.
    """
    if kind != "GPT2BPETokenizer":
        raise UserError(f"--tokenizer-type {kind} is not supported: use GPT2BPETokenizer")
    for flag, path in (("--vocab-file", vocab_file), ("--merge-file", merge_file)):
        if not path:
            raise UserError(f"--tokenizer-type {kind} needs {flag}: {HINT}")
    return GPT2BPETokenizer(vocab_file, merge_file)

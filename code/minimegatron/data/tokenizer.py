"""GPT-2's byte-level BPE: text to token ids and back, with the `tokenizers` library."""

from __future__ import annotations

import os

from minimegatron.data.vocabulary import MAKE_ONE, Vocabulary
from minimegatron.errors import UserError


class GPT2BPETokenizer(Vocabulary):
    """Text to token ids and back. Ids run from 0 to `vocab_size` - 1; `eod` ends a document.

    Raises UserError when a file is missing or is not what its flag says.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], merge_file: str | os.PathLike[str]):
        super().__init__(vocab_file, merge_file)
        self._tokenizer = _byte_level_bpe(self.ids, self.merges)

    def tokenize(self, text: str) -> list[int]:
        """Encode plain text. `<|endoftext|>` written in it is text like any other, never `eod`."""
        return self._tokenizer.encode(text).ids

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]:
        """`tokenize` for many texts, on RAYON_NUM_THREADS threads (default: every core)."""
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
    """The tokenizer that --tokenizer-type names. Raises UserError for another kind or no files."""
    if kind != "GPT2BPETokenizer":
        raise UserError(f"--tokenizer-type {kind} is not supported: use GPT2BPETokenizer")
    for flag, path in (("--vocab-file", vocab_file), ("--merge-file", merge_file)):
        if not path:
            raise UserError(f"--tokenizer-type {kind} needs {flag}: {MAKE_ONE}")
    return GPT2BPETokenizer(vocab_file, merge_file)

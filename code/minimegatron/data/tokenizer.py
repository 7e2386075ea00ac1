"""The tokenizers by their types, and GPT-2's byte-level BPE.

They convert text to token IDs and back with the `tokenizers` library.
"""

from __future__ import annotations

import os

from minimegatron.arguments import Config
from minimegatron.arguments.data import HINT, HUGGING_FACE, check_tokenizer_files
from minimegatron.data.hugging_face import HuggingFaceTokenizer
from minimegatron.data.vocabulary import Vocabulary, read_text
from minimegatron.errors import UserError


class GPT2BPETokenizer(Vocabulary):
    """Encodes text as token IDs, and decodes them.

    Raises UserError if a file is missing, or not what its flag stands for.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], merge_file: str | os.PathLike[str]):
        super().__init__(vocab_file, merge_file)
        require_byte_tokens(self.ids, vocab_file)
        merges = read_merges(merge_file, self.ids, vocab_file)
        self._tokenizer = _byte_level_bpe(self.ids, merges)

    def tokenize(self, text: str) -> list[int]:
        """Return the IDs of plain text; `<|endoftext|>` in it is text like any other, not `eod`."""
        return self._tokenizer.encode(text).ids

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the IDs of many texts, on RAYON_NUM_THREADS threads (default: every core)."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as Hugging Face's tokenizer.json."""
        self._tokenizer.save(str(path))

    def detokenize(self, ids: list[int]) -> str:
        """Return the text; bytes that are not UTF-8 (part of a character) become U+FFFD."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def byte_alphabet() -> list[str]:
    """Return the 256 one-character tokens that stand for bytes, in GPT-2's order (IDs 0 to 255).

    Printable Latin-1 characters stand for themselves; the other 68 bytes get the characters from
    U+0100 on, in the bytes' order. (Radford et al. 2019, `bytes_to_unicode`.)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]


def require_byte_tokens(vocabulary: dict[str, int], path: str | os.PathLike[str]) -> None:
    """Raise UserError unless the vocabulary of --vocab-file `path` can encode every byte."""
    if missing := [token for token in byte_alphabet() if token not in vocabulary]:
        raise UserError(f"--vocab-file {path} is not byte-level: it lacks {len(missing)} of the "
                        f"256 byte tokens (the first is {missing[0]!r}), so it cannot encode "
                        f"every text; {HINT}")


def read_merges(path: str | os.PathLike[str], vocabulary: dict[str, int],
                vocab_file: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Return the merges in their order, from GPT-2's merges.txt: a `#version` line, then pairs.

    Args:
        path: --merge-file.
        vocabulary: the ID of every token.
        vocab_file: the file that it comes from, which error messages name.

    Raises UserError if a line is not a pair, if a token is not in `vocabulary`, or if the merges do
    not produce all of the vocabulary.
    """
    merges = []
    lines = read_text(path, "--merge-file").split("\n")
    for number, line in enumerate(lines, start=1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        pair = tuple(line.split(" "))
        if len(pair) != 2 or not all(pair):
            raise UserError(f"--merge-file {path}, line {number}: {line[:60]!r} is not two tokens "
                            f"separated by a space, as in GPT-2's merges.txt; {HINT}")
        for token in (*pair, "".join(pair)):
            if token not in vocabulary:
                raise UserError(
                    f"--merge-file {path}, line {number}: {token!r} is not in {vocab_file}: the "
                    f"two files do not belong together, or one is corrupted; {HINT}")
        merges.append(pair)
    produced = {left + right for left, right in merges}.union(byte_alphabet())
    # Only special tokens such as <|endoftext|> and <pad> are neither bytes nor merges.
    orphans = [t for t in vocabulary if t not in produced and not (t[:1] == "<" and t[-1:] == ">")]
    if orphans:
        raise UserError(
            f"--merge-file {path} produces only {len(merges):,} tokens: {len(orphans):,} entries "
            f"of {vocab_file} have no merge (one is {orphans[0]!r}): it is truncated, or the two "
            f"files do not belong together; {HINT}")
    return merges


def _byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # No special token is registered: the library would find it inside plain text.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


Tokenizer = GPT2BPETokenizer | HuggingFaceTokenizer
AnyVocabulary = Vocabulary | HuggingFaceTokenizer


def build_tokenizer(kind: str, vocab_file: str | None, merge_file: str | None,
                    tokenizer_model: str | None = None) -> Tokenizer:
    """Return the tokenizer that --tokenizer-type names.

    Arguments as in `check_tokenizer_files`. Raises UserError if the files do not belong to the
    type, or cannot be read.
    """
    check_tokenizer_files(kind, vocab_file, merge_file, tokenizer_model)
    if kind == HUGGING_FACE:
        return HuggingFaceTokenizer(tokenizer_model)
    return GPT2BPETokenizer(vocab_file, merge_file)


def vocabulary_of(config: Config) -> AnyVocabulary:
    """Return what training needs of the tokenizer: its size and `eod`. Raises UserError."""
    if config.tokenizer_type == HUGGING_FACE:
        return HuggingFaceTokenizer(config.tokenizer_model)
    return Vocabulary(config.vocab_file, config.merge_file)

"""The vocabulary of GPT-2's byte-level BPE, from its two files: `vocab.json` and `merges.txt`.

It reads the real GPT-2 files and those that `lab data` makes. Training needs no more of the
tokenizer than this; tokenizer.py encodes text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from minimegatron.errors import UserError

END_OF_DOCUMENT = "<|endoftext|>"

HINT = "`lab data` makes a pair in $LAB_HOME/data/GPT-2_assets"


def byte_alphabet() -> list[str]:
    """Return the 256 one-character tokens that stand for bytes, in GPT-2's order (IDs 0 to 255).

    Printable Latin-1 characters stand for themselves; the other 68 bytes get the characters from
    U+0100 on, in the bytes' order. (Radford et al. 2019, `bytes_to_unicode`.)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    return [chr(byte) for byte in printable] + [chr(0x100 + n) for n in range(256 - len(printable))]


class Vocabulary:
    """The size of a vocabulary, and `eod`, the token that ends a document.

    IDs run from 0 to `vocab_size` - 1. Raises UserError if a file is missing, or not what its
    flag stands for.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], merge_file: str | os.PathLike[str]):
        self.ids = read_vocabulary(vocab_file)
        self.merges = read_merges(merge_file, self.ids, vocab_file)
        self.eod, self.vocab_size = self.ids[END_OF_DOCUMENT], len(self.ids)


def pad_vocab_size(size: int, make_divisible_by: int, tensor_parallel: int) -> int:
    """Return the rows of the word embedding: 50257 -> 50304 for (128, 1), 50432 for (128, 2).

    Args:
        size: entries of the vocabulary.
        make_divisible_by: each rank's rows are a multiple of this.
        tensor_parallel: ranks that share the embedding.
    """
    multiple = make_divisible_by * tensor_parallel
    return -(-size // multiple) * multiple


def read_vocabulary(path: str | os.PathLike[str]) -> dict[str, int]:
    """Return {token: ID} from GPT-2's vocab.json.

    Raises UserError unless the IDs are 0 to n - 1, and every byte and the end token has one.
    """
    try:
        vocabulary = json.loads(_read_text(path, "--vocab-file"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"--vocab-file {path} is not JSON ({error}); it should be GPT-2's "
                        f"vocab.json (are --vocab-file and --merge-file swapped?); {HINT}"
                        ) from error
    if not isinstance(vocabulary, dict) or not all(type(i) is int for i in vocabulary.values()):
        raise UserError(f"--vocab-file {path} is JSON, but does not map tokens to ids as GPT-2's "
                        f"vocab.json does; {HINT}")
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise UserError(f"--vocab-file {path} is corrupted: its {len(vocabulary):,} ids are not "
                        f"0 to {len(vocabulary) - 1:,}, each once; {HINT}")
    if END_OF_DOCUMENT not in vocabulary:
        raise UserError(f"--vocab-file {path} has no {END_OF_DOCUMENT}, the token that ends a "
                        f"document; {HINT}")
    if missing := [token for token in byte_alphabet() if token not in vocabulary]:
        raise UserError(f"--vocab-file {path} is not byte-level: it lacks {len(missing)} of the "
                        f"256 byte tokens (the first is {missing[0]!r}), so it cannot encode "
                        f"every text; {HINT}")
    return vocabulary


def read_merges(path: str | os.PathLike[str], vocabulary: dict[str, int],
                vocab_file: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Return the merges in their order, from GPT-2's merges.txt: a `#version` line, then pairs.

    Raises UserError if a line is not a pair, if a token is not in `vocabulary`, or if the merges do
    not produce all of the vocabulary.
    """
    merges = []
    lines = _read_text(path, "--merge-file").split("\n")
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


def _read_text(path: str | os.PathLike[str], flag: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{flag} {path} does not exist; {HINT}") from None
    except OSError as error:
        raise UserError(f"cannot read {flag} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{flag} {path} is corrupted: byte {error.start:,} is not UTF-8; {HINT}"
                        ) from error

"""The vocabulary of GPT-2's byte-level BPE, from GPT-2's `vocab.json` or one of `lab data`.

Training needs no more of the tokenizer than this; tokenizer.py encodes text.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from minimegatron.arguments.data import HINT
from minimegatron.errors import UserError

END_OF_DOCUMENT = "<|endoftext|>"


class Vocabulary:
    """The size of a vocabulary, and `eod`, the token that ends a document.

    IDs run from 0 to `vocab_size` - 1. Raises UserError if a file is missing, or not what its
    flag stands for.
    """

    def __init__(self, vocab_file: str | os.PathLike[str], merge_file: str | os.PathLike[str]):
        self.ids = read_vocabulary(vocab_file)
        read_text(merge_file, "--merge-file")  # training encodes nothing, but finds a wrong path
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

    Raises UserError unless the IDs are 0 to n - 1, and the end token has one.
    """
    try:
        vocabulary = json.loads(read_text(path, "--vocab-file"))
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
    return vocabulary


def read_text(path: str | os.PathLike[str], flag: str) -> str:
    """Return the text of a file. Raises UserError, which names its flag, if it is not readable."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{flag} {path} does not exist; {HINT}") from None
    except OSError as error:
        raise UserError(f"cannot read {flag} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{flag} {path} is corrupted: byte {error.start:,} is not UTF-8; {HINT}"
                        ) from error

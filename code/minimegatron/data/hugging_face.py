"""Tokenizers in Hugging Face's format: a folder with tokenizer.json, as Llama's and most others.

tokenizer.json describes everything: the normalization, the split into words, the vocabulary with
its special tokens, and which of them begin or end a text. tokenizer_config.json beside it names the
token that ends a document. Both are read as data; no code that a folder brings along runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from minimegatron.data.vocabulary import END_OF_DOCUMENT
from minimegatron.errors import UserError

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
# Without SETTINGS, the first of these that is in the vocabulary: GPT-2's and Llama 3's.
END_TOKENS = (END_OF_DOCUMENT, "<|end_of_text|>")


class HuggingFaceTokenizer:
    """Encodes text as token IDs, and decodes them.

    Attributes:
        vocab_size: the largest ID plus 1.
        eod: the ID of the token that ends a document.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the folder of --tokenizer-model.

        Raises UserError if a file is missing or unreadable, or if no token ends a document.
        """
        from tokenizers import Tokenizer

        path = Path(folder) / FILE
        require_folder(Path(folder))
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no other class, whatever is wrong
            raise UserError(f"--tokenizer-model {folder}: {path} is not a tokenizer that the "
                            f"`tokenizers` library reads ({str(error)[:200]}); it is corrupted, or "
                            "written by a newer version; copy or download it again") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # The name of a special token inside a document is text like any other.
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = max(self._tokenizer.get_vocab().values(), default=0) + 1
        self.eod = self._end_of_document(Path(folder))

    def _end_of_document(self, folder: Path) -> int:
        """Return the ID of the token that ends a document. Raises UserError if there is none."""
        named = end_token(folder)
        for token in END_TOKENS if named is None else (named,):
            if (found := self._tokenizer.token_to_id(token)) is not None:
                return found
        if named is not None:
            raise UserError(f"--tokenizer-model {folder}: {SETTINGS} names the eos_token "
                            f"{named!r}, which {FILE} does not have; the two files do not belong "
                            "together")
        raise UserError(f"--tokenizer-model {folder}: no token ends a document: {SETTINGS} names "
                        f"no eos_token, and {FILE} has neither {' nor '.join(END_TOKENS)}; name "
                        f'one in {folder / SETTINGS}, as in {{"eos_token": "</s>"}}')

    def tokenize(self, text: str) -> list[int]:
        """Return the IDs of plain text, with the tokens that tokenizer.json puts around a text.

        For Llama 3, that is <|begin_of_text|> at the beginning.
        """
        return self._tokenizer.encode(text).ids

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]:
        """Return the IDs of many texts, on RAYON_NUM_THREADS threads (default: every core)."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts)]

    def detokenize(self, ids: list[int]) -> str:
        """Return the text, with special tokens by their names."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def require_folder(folder: Path) -> None:
    """Raise UserError unless the folder of --tokenizer-model has a tokenizer."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"--tokenizer-model {folder} {what}: give the folder that holds {FILE}")
    if not (folder / FILE).exists():
        raise UserError(f"--tokenizer-model {folder} has no {FILE}: give the folder of a tokenizer "
                        "or a model in Hugging Face's format; for vocab.json and merges.txt, use "
                        "--tokenizer-type GPT2BPETokenizer --vocab-file --merge-file")


def end_token(folder: Path) -> str | None:
    """Return the eos_token in SETTINGS, or None if there is none. Raises UserError."""
    path = folder / SETTINGS
    if not path.exists():
        return None
    try:
        token = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"--tokenizer-model {folder}: {path} is not a JSON object ({error}); copy "
                        "or download it again") from error
    return token.get("content") if isinstance(token, dict) else token

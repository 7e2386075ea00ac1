"""The tokenizer beside a model: in Hugging Face's folder, and in a checkpoint's arguments."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minimegatron.arguments.data import HUGGING_FACE
from minimegatron.data.hugging_face import FILE, SETTINGS
from minimegatron.data.tokenizer import build_tokenizer
from minimegatron.data.vocabulary import END_OF_DOCUMENT
from minimegatron.errors import UserError

VOCABULARY, MERGES = "vocab.json", "merges.txt"  # of GPT-2


def tokenizer_in(folder: Path) -> dict[str, str]:
    """Return the trainer's flags for the tokenizer in a folder; empty if there is none.

    GPT-2's own two files come first, because data that was made with them goes on with them.
    """
    if (folder / VOCABULARY).exists() and (folder / MERGES).exists():
        return {"vocab_file": str(folder / VOCABULARY), "merge_file": str(folder / MERGES)}
    if (folder / FILE).exists():
        return {"tokenizer_type": HUGGING_FACE, "tokenizer_model": str(folder)}
    return {}


def copy_tokenizer(args: Mapping[str, Any], out: Path) -> str | None:
    """Write the tokenizer of a checkpoint into a folder, in Hugging Face's format.

    Returns None, or why that is not possible: its files may be elsewhere by now.

    Args:
        args: the checkpoint's arguments.
        out: the folder.
    """
    try:
        tokenizer = build_tokenizer(args.get("tokenizer_type"), args.get("vocab_file"),
                                    args.get("merge_file"), args.get("tokenizer_model"))
    except UserError as error:
        return str(error)
    if folder := args.get("tokenizer_model"):
        for path in (Path(folder) / name for name in (FILE, SETTINGS)):
            if path.exists():
                shutil.copy(path, out)
    else:
        tokenizer.save(out / FILE)
        (out / SETTINGS).write_text(json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_DOCUMENT}, indent=1))
    return None

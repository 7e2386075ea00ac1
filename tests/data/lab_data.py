"""Shared by the tests of `lab data`: its files, and a small setting that builds fast."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from corpus_tools import cli as data

GPT2_PREFIX = "GPT-2_assets/my-gpt2_text_document"
FILES = {
    "GPT-2_assets/gpt2-vocab.json", "GPT-2_assets/gpt2-merges.txt",
    f"{GPT2_PREFIX}.bin", f"{GPT2_PREFIX}.idx",
    "bpe-400/vocab.json", "bpe-400/merges.txt", "bpe-400/text_document.bin",
    "bpe-400/text_document.idx",
}


def quiet(line):
    pass


def files(home) -> dict[str, str]:
    """The visible files of the data, with a hash of their bytes."""
    root = Path(home) / "data"
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in root.rglob("*") if path.is_file() and path.name[0] != "."}


def hidden(home) -> set[str]:
    return {name for name in os.listdir(Path(home) / "data") if name[0] == "."}


def small(jsonl, **more) -> data.DataOptions:
    return data.DataOptions((str(jsonl),), gpt2_entries=900, small_entries=400, **more)


def lab(*words, home):
    """Run `lab data WORDS` in another process."""
    code = ("import argparse, sys\nfrom corpus_tools import cli as data\n"
            "from labcore.errors import LabError\n"
            "top = argparse.ArgumentParser()\ndata.add_parser(top.add_subparsers())\n"
            "arguments = top.parse_args(sys.argv[1:])\n"
            "assert 'torch' not in sys.modules and 'minimegatron' not in sys.modules\n"
            "try:\n    sys.exit(arguments.run(arguments))\n"
            "except LabError as error:\n    sys.exit(f'lab: error: {error}')\n")
    return subprocess.Popen([sys.executable, "-c", code, "data", *map(str, words)], text=True,
                            env=os.environ | {"LAB_HOME": str(home)}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)

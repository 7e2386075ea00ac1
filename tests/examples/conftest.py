"""A workspace with a little text, and the programs' own modules on the path."""

import json
import sys

import pytest

from lab import workspace
from minimegatron.data.preprocess import preprocess
from minimegatron.data.tokenizer import GPT2BPETokenizer, write_vocabulary

EXAMPLES = workspace.CODE / "examples"
sys.path.insert(0, str(EXAMPLES))

TEXT = "The quick brown fox jumps over the lazy dog, and the dog does not mind. " * 40


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A workspace whose vocabulary is the 256 bytes and the end token."""
    made = tmp_path_factory.mktemp("examples")
    folder = made / "data" / "bpe-4096"
    folder.mkdir(parents=True)
    vocabulary = folder / "vocab.json", folder / "merges.txt"
    write_vocabulary([], *vocabulary)
    text = made / "text.jsonl"
    text.write_text("".join(json.dumps({"text": f"{n} {TEXT}"}) + "\n" for n in range(10)))
    preprocess([text], folder / "new", GPT2BPETokenizer(*vocabulary))
    for suffix in (".bin", ".idx"):
        (folder / f"new_text_document{suffix}").rename(folder / f"text_document{suffix}")
    return made


@pytest.fixture
def in_home(home, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(home))
    return home

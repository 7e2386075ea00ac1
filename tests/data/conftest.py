"""Small text, a small vocabulary trained on it, and token files made from both."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from corpus_tools import cli as data
from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter
from corpus_tools.train_vocabulary import train_merges, write_vocabulary
from minimegatron.data.tokenizer import GPT2BPETokenizer

from .lab_data import quiet, small

CODE = Path(__file__).parents[2] / "code"

# Real text that is there on every machine that runs these tests.
TEXTS = [path.read_text(encoding="utf-8") for folder in ("minimegatron/data", "corpus_tools")
         for path in sorted((CODE / folder).glob("*.py"))]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return TEXTS


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("vocabulary")
    files = folder / "vocab.json", folder / "merges.txt"
    write_vocabulary(train_merges(TEXTS, 743), *files)
    return files


@pytest.fixture(scope="session")
def tokenizer(vocabulary) -> GPT2BPETokenizer:
    return GPT2BPETokenizer(*vocabulary)


@pytest.fixture
def jsonl(tmp_path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture
def write_pair(tmp_path):
    """write_pair([[1, 2], [3]]) -> the prefix of a pair with these documents."""

    def write(documents, dtype=np.uint16, name="pair") -> str:
        with IndexedDatasetWriter(tmp_path / name, dtype) as writer:
            for document in documents:
                writer.add_sequence(document)
                writer.end_document()
        return str(tmp_path / name)

    return write


@pytest.fixture
def in_order(write_pair):
    """in_order([3, 0, 5]) -> the prefix of a pair whose tokens count up through documents."""

    def write(sizes, **options) -> str:
        ends = np.cumsum(sizes)
        return write_pair([np.arange(end - size, end)
                           for size, end in zip(sizes, ends, strict=True)], **options)

    return write


@pytest.fixture(scope="session")
def built(tmp_path_factory, texts) -> tuple[Path, Path]:
    """Two workspaces with data, made from `jsonl`'s text and from the same text twice."""
    homes = []
    for times in (1, 2):
        home = tmp_path_factory.mktemp("built")
        source = home / "text.jsonl"
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts) * times)
        data.make(home, quiet, small(source))
        homes.append(home)
    return homes[0], homes[1]


@pytest.fixture
def home(built, tmp_path) -> Path:
    """A workspace with the data that `small(jsonl)` makes."""
    shutil.copytree(built[0] / "data", tmp_path / "home" / "data")
    return tmp_path / "home"

"""Token files, index maps and token ids are those of the packages that others use.

What megatron-core and tiktoken made is kept in data_files.json; `pytest -m oracle` makes it again
where they are installed (see make_data_files.py).
"""

import json
from pathlib import Path

import numpy as np
import pytest

from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter
from corpus_tools.train_vocabulary import write_vocabulary
from minimegatron.data.gpt_dataset import GPTDataset, Split
from minimegatron.data.index_maps import LastEpoch, build_index_maps
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.tokenizer import GPT2BPETokenizer

from .make_data_files import MAPS, PAIRS, TEXTS, digest, documents, made

FROZEN = json.loads(Path(__file__).with_name("data_files.json").read_text())


def write(pair, prefix):
    with IndexedDatasetWriter(prefix, PAIRS[pair][1]) as writer:
        for tokens in documents(pair):
            writer.add_sequence(tokens)
            writer.end_document()


@pytest.mark.parametrize("pair", PAIRS)
def test_token_files_have_megatron_core_s_bytes(pair, tmp_path):
    write(pair, tmp_path / "ours")
    assert (tmp_path / "ours.idx").read_bytes().hex() == FROZEN["pairs"][pair]["idx"]
    assert digest(tmp_path / "ours.bin") == FROZEN["pairs"][pair]["bin"]


@pytest.mark.parametrize("name", MAPS)
def test_index_maps_and_samples_are_megatron_core_s(name, tmp_path):
    pair, (first, last), samples, seq_length, seed = MAPS[name]
    write(pair, tmp_path / "ours")
    split = Split(IndexedDataset(tmp_path / "ours"), "train",
                      np.arange(first, last, dtype=np.int32), samples, seq_length, seed)
    build_index_maps(split, lambda line: None)
    ours, theirs = GPTDataset(split), FROZEN["maps"][name]
    for kind, found in (("doc", ours.doc_idx), ("sample", ours.sample_idx),
                        ("shuffle", ours.shuffle_idx)):
        assert found.tolist() == theirs[kind], kind
    assert LastEpoch(split.plan).is_separate == (name == "last epoch apart")
    assert [ours[i]["text"].tolist() for i in range(len(ours))] == theirs["texts"]


def test_token_ids_are_tiktoken_s(tmp_path):
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    write_vocabulary(FROZEN["merges"], *files)
    ours = GPT2BPETokenizer(*files)
    ids = [ours.tokenize(text) for text in TEXTS]
    assert ids == FROZEN["ids"]
    used = {token for text in ids for token in text}
    assert len(used & set(range(256, 256 + 80))) > 40  # the texts meet the merges


@pytest.mark.oracle
def test_the_packages_still_make_what_is_kept():
    now = made()
    assert now == {name: FROZEN[name] for name in now}

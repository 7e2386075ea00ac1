"""Samples as the trainer gets them; building, waiting and loading; stale and missing maps."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimegatron.data import build_index_maps, gpt_dataset
from minimegatron.data.build_index_maps import LastEpoch
from minimegatron.data.gpt_dataset import build_train_valid_test_datasets
from minimegatron.errors import UserError


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    monkeypatch.setattr(gpt_dataset, "VISIBILITY_TIMEOUT", 0.0)


def build(prefix, split="1,0,0", seq_length=4, seed=1234, num_samples=(5, 0, 0), builder=True,
          lines=None, **options):
    say = (lambda line: None) if lines is None else lines.append
    return build_train_valid_test_datasets(
        prefix, split, seq_length, seed, num_samples, builder, lambda: None, say, **options)


def test_a_sample_is_seq_length_plus_one_tokens(in_order):
    train, valid, test = build(in_order([7, 9, 4]))
    assert valid is None and test is None
    assert len(train) == 9 and train[0]["text"].shape == (5,)
    assert train[0]["text"].dtype == np.int64
    assert train[-1]["text"].tolist() == train[8]["text"].tolist()
    with pytest.raises(IndexError):
        train[9]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture],
          max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any), st.integers(1, 6),
       st.integers(0, 20), st.integers(0, 9))
def test_samples_are_the_epochs_in_order(in_order, sizes, seq_length, samples, seed):
    """Unshuffled, samples overlap by one token and spell the documents as doc_idx orders them."""
    prefix = in_order(sizes)
    train = build(prefix, seq_length=seq_length, num_samples=(samples, 0, 0), seed=seed)[0]
    place = {sample: index for index, sample in enumerate(train.shuffle_idx.tolist())}
    texts = [train[place[k]]["text"].tolist() for k in range(len(train))]
    stream = [token for document in train.doc_idx
              for token in train.split.data[document].tolist()]
    for k, text in enumerate(texts):
        assert text == stream[k * seq_length : (k + 1) * seq_length + 1]
    for left, right in itertools.pairwise(texts):
        assert left[-1] == right[0]
    epoch = list(range(sum(sizes)))
    assert sorted(stream) == sorted(epoch * train.split.plan.epochs)
    if LastEpoch(train.split.plan).is_separate:
        assert sorted(stream[-len(epoch):]) == epoch


def test_files_have_the_names_of_2021(in_order, tmp_path):
    build(in_order([20] * 10), split="8,1,1", num_samples=(7, 2, 1))
    names = {name for name in os.listdir(tmp_path) if name.endswith(".npy")}
    assert names == {f"pair_{part}_indexmap_{n}ns_4sl_1234s_{kind}_idx.npy"
                     for part, n in (("train", 7), ("valid", 2), ("test", 1))
                     for kind in ("doc", "sample", "shuffle")}


def test_the_lines_are_megatrons(in_order):
    lines = []
    prefix = in_order([20] * 10)
    build(prefix, split="8,1,1", num_samples=(7, 2, 1), lines=lines)
    text = "\n".join(lines)
    for line in (
        "> building train, validation, and test datasets ...",
        " > datasets target sizes (minimum size):", "    train:      7", "    validation: 2",
        "    test:       1", " > building dataset index ...", "    reading sizes...",
        "    number of documents: 10", " > dataset split:",
        "     document indices in [0, 8) total of 8 documents",
        " > WARNING: could not find index map files, building the indices on rank 0 ...",
        " > building shuffle index with split [0, 39) and [39, 39) ...",
        f" > loading doc-idx mapping from {prefix}_train_indexmap_7ns_4sl_1234s_doc_idx.npy",
        "    total number of samples: 40", "    total number of epochs: 1",
        "> finished creating GPT datasets ...",
    ):
        assert line in lines, line
    assert " > elasped time to build and save sample-idx mapping (seconds): 0.0" in text


def test_good_maps_are_used_again(in_order, tmp_path):
    prefix = in_order([20] * 10)
    build(prefix)
    stamps = {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}
    lines = []
    build(prefix, lines=lines)
    assert not any("WARNING" in line for line in lines)
    assert stamps == {name: os.stat(tmp_path / name).st_mtime_ns for name in os.listdir(tmp_path)}


def test_maps_of_other_data_are_built_again(in_order):
    build(in_order([20, 10, 30]))
    lines = []
    train = build(in_order([30, 20, 10]), lines=lines)[0]
    assert any("documents of other lengths" in line for line in lines)
    assert len(train) == 14 and all(len(train[i]["text"]) == 5 for i in range(14))


def test_a_damaged_map_is_built_again(in_order, tmp_path):
    prefix = in_order([20] * 3)
    build(prefix)
    path = tmp_path / "pair_train_indexmap_5ns_4sl_1234s_shuffle_idx.npy"
    path.write_bytes(path.read_bytes()[:100])
    lines = []
    build(prefix, lines=lines)
    assert any("damaged" in line for line in lines)


def test_a_rank_that_cannot_see_the_maps_says_so(in_order):
    with pytest.raises(UserError, match=r"cannot see the index map .*_doc_idx\.npy.*every node"):
        build(in_order([20] * 3), builder=False)


def test_the_barrier_is_called_once_by_all_even_when_building_fails(in_order):
    calls = []
    arguments = dict(split="1,0,0", seq_length=4, seed=1, num_samples=(5, 0, 0), log=print)
    prefix = in_order([20] * 3)
    build_train_valid_test_datasets(prefix, is_builder=True, barrier=lambda: calls.append(1),
                                    **arguments)
    build_train_valid_test_datasets(prefix, is_builder=False, barrier=lambda: calls.append(2),
                                    **arguments)
    with pytest.raises(UserError):
        build_train_valid_test_datasets("nowhere", is_builder=True,
                                        barrier=lambda: calls.append(3), **arguments)
    assert calls == [1, 2, 3]


def test_other_ranks_wait_for_the_files(in_order):
    """The barrier is where rank 0's files come to be."""
    prefix = in_order([20] * 3)
    train = build_train_valid_test_datasets(
        prefix, "1,0,0", 4, 1234, (5, 0, 0), False, lambda: build(prefix), print)[0]
    assert len(train) == 14


def test_an_unwritable_folder_names_the_flag(in_order, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    prefix = in_order([20] * 3)
    monkeypatch.setattr(build_index_maps, "atomic_file", refuse)  # root may write everywhere
    with pytest.raises(UserError, match=r"Permission denied.*--data-cache-path"):
        build(prefix)


def test_the_cache_path_is_used_and_made(in_order, tmp_path):
    prefix = in_order([20] * 3)
    build(prefix, cache_path=str(tmp_path / "cache" / "maps"))
    assert len(os.listdir(tmp_path / "cache" / "maps")) == 3
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".npy")]


def test_a_split_without_tokens_is_refused(write_pair):
    with pytest.raises(UserError, match=r"train split .* empty document"):
        build(write_pair([[], []]))


def test_tokens_of_another_vocabulary_are_refused(in_order):
    train = build(in_order([20] * 3), vocab_size=30)[0]
    with pytest.raises(UserError, match="vocabulary has 30 entries"):
        [train[i] for i in range(len(train))]


@pytest.mark.slow
def test_two_builders_at_once_agree(in_order, tmp_path):
    prefix = in_order([50] * 200)
    code = ("import sys\n"
            "from minimegatron.data.gpt_dataset import build_train_valid_test_datasets as build\n"
            "d = build(sys.argv[1], '8,1,1', 16, 1, (2000, 10, 10), True, lambda: None,\n"
            "          lambda line: None)\n"
            "print(sum(int(d[0][i]['text'].sum()) for i in range(100)))")
    runs = [subprocess.Popen([sys.executable, "-c", code, prefix], stdout=subprocess.PIPE)
            for _ in range(2)]
    results = {run.communicate(timeout=60)[0] for run in runs}
    assert [run.returncode for run in runs] == [0, 0] and len(results) == 1
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]

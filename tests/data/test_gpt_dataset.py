"""Samples as the trainer gets them; building, waiting and loading; stale and missing maps."""

import itertools
import multiprocessing
import os
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minimegatron.arguments import Config
from minimegatron.data import gpt_dataset, index_maps
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.index_maps import LastEpoch
from minimegatron.errors import UserError


@pytest.fixture(autouse=True)
def barriers(monkeypatch) -> list[str]:
    """A rank at the barrier, whose files appear immediately or never."""
    calls = []
    monkeypatch.setattr(gpt_dataset, "VISIBILITY_TIMEOUT", 0.0)
    monkeypatch.setattr(gpt_dataset.dist, "barrier", lambda: calls.append("barrier"))
    return calls


def build(prefix, rank=0, lines=None, vocab_size=None, samples=5, **flags):
    """Build data sets of at least `samples` training samples, and of none to evaluate on."""
    flags = {"split": "1,0,0", "seq_length": 4, "eval_iters": 0, **flags}
    config = Config(data_path=str(prefix), train_iters=samples, global_batch_size=1, **flags)
    log = (lambda line: None) if lines is None else lines.append
    ctx = SimpleNamespace(config=config, grid=SimpleNamespace(rank=rank), print_rank_0=log)
    return build_datasets(ctx, vocab_size)


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
    train = build(prefix, seq_length=seq_length, samples=samples, seed=seed)[0]
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
    build(in_order([20] * 10), split="8,1,1", samples=7, eval_iters=1, eval_interval=7)
    names = {name for name in os.listdir(tmp_path) if name.endswith(".npy")}
    assert names == {f"pair_{part}_indexmap_{n}ns_4sl_1234s_{kind}_idx.npy"
                     for part, n in (("train", 7), ("valid", 2), ("test", 1))
                     for kind in ("doc", "sample", "shuffle")}


def test_the_lines_are_megatrons(in_order):
    lines = []
    prefix = in_order([20] * 10)
    build(prefix, split="8,1,1", samples=7, eval_iters=1, eval_interval=7, lines=lines)
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
        build(in_order([20] * 3), rank=1)


def test_every_rank_reaches_one_barrier_even_when_building_fails(in_order, barriers):
    prefix = in_order([20] * 3)
    build(prefix)
    build(prefix, rank=1)
    with pytest.raises(UserError):
        build("nowhere")
    assert barriers == ["barrier"] * 3


def test_other_ranks_wait_for_the_files(in_order, monkeypatch):
    """The files of rank 0 appear at the barrier."""
    prefix, at_the_barrier = in_order([20] * 3), [lambda: build(prefix), lambda: None]
    monkeypatch.setattr(gpt_dataset.dist, "barrier", lambda: at_the_barrier.pop(0)())
    assert len(build(prefix, rank=1)[0]) == 14


def test_a_split_without_training_data_is_refused(in_order):
    with pytest.raises(UserError, match=r"--split 0,1,0 leaves no document .* nearest: --split"):
        build(in_order([20] * 3), split="0,1,0")


def test_an_unwritable_folder_names_the_flag(in_order, tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    prefix = in_order([20] * 3)
    monkeypatch.setattr(index_maps, "atomic_file", refuse)  # root may write everywhere
    with pytest.raises(UserError, match=r"Permission denied.*--data-cache-path"):
        build(prefix)


def test_the_cache_path_is_used_and_made(in_order, tmp_path):
    prefix = in_order([20] * 3)
    build(prefix, data_cache_path=str(tmp_path / "cache" / "maps"))
    assert len(os.listdir(tmp_path / "cache" / "maps")) == 3
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".npy")]


def test_a_split_without_tokens_is_refused(write_pair):
    with pytest.raises(UserError, match=r"train split .* empty document"):
        build(write_pair([[], []]))


def test_tokens_of_another_vocabulary_are_refused(in_order):
    train = build(in_order([20] * 3), vocab_size=30)[0]
    with pytest.raises(UserError, match="vocabulary has 30 entries"):
        [train[i] for i in range(len(train))]


def sum_of_samples(prefix: str) -> int:
    train = build(prefix, split="8,1,1", seq_length=16, samples=2000, eval_iters=10)[0]
    return sum(int(train[i]["text"].sum()) for i in range(100))


@pytest.mark.slow
def test_two_builders_at_once_agree(in_order, tmp_path):
    prefix = in_order([50] * 200)
    fork = multiprocessing.get_context("fork")
    sums = fork.SimpleQueue()
    builders = [fork.Process(target=lambda: sums.put(sum_of_samples(prefix))) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert [builder.exitcode for builder in builders] == [0, 0]
    one, other = sums.get(), sums.get()
    assert one == other > 0
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]

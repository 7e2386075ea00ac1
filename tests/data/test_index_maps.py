"""The three maps against slow references that are obviously right."""


import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minimegatron.data import index_maps
from minimegatron.data.index_maps import (
    LastEpoch,
    build_doc_idx,
    build_shuffle_idx,
    split_boundaries,
)
from minimegatron.errors import UserError


def walk(sizes, doc_idx, samples, seq_length):
    """sample_idx by walking through every token: sample k begins at token k*S."""
    places = [(index, offset) for index, document in enumerate(doc_idx)
              for offset in range(sizes[document])]
    return [(0, 0)] + [places[k * seq_length] for k in range(1, samples + 1)]


def epochs_by_counting(tokens, seq_length, samples):
    epochs = 1
    while (epochs * tokens - 1) // seq_length < samples:
        epochs += 1
    return epochs


sizes_lists = st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(any)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 60))
def test_least_number_of_epochs(tokens, seq_length, samples):
    plan = index_maps.plan_epochs(tokens, seq_length, samples)
    assert plan.epochs == epochs_by_counting(tokens, seq_length, samples)
    assert plan.samples >= samples


@settings(max_examples=200)
@given(sizes_lists, st.integers(1, 9), st.integers(0, 40), st.integers(0, 99))
def test_sample_idx_is_the_reference(sizes, seq_length, samples, seed):
    sizes = np.array(sizes, dtype=np.int32)
    plan = index_maps.plan_epochs(int(sizes.sum()), seq_length, samples)
    doc_idx = build_doc_idx(
        np.arange(len(sizes), dtype=np.int32), plan, np.random.RandomState(seed))
    sample_idx = index_maps.build_sample_idx(sizes, doc_idx, plan)
    assert sample_idx.dtype == np.int32
    expected = walk(sizes, doc_idx, plan.samples, seq_length)
    assert [tuple(row) for row in sample_idx.tolist()] == expected


@given(sizes_lists, st.integers(1, 9), st.integers(0, 40))
def test_every_epoch_reads_every_document_once(sizes, seq_length, samples):
    documents = np.arange(5, 5 + len(sizes), dtype=np.int32)
    plan = index_maps.plan_epochs(sum(sizes), seq_length, samples)
    doc_idx = build_doc_idx(documents, plan, np.random.RandomState(1))
    assert doc_idx.dtype == np.int32
    assert sorted(doc_idx) == sorted(list(documents) * plan.epochs)
    if LastEpoch(plan).is_separate:
        assert sorted(doc_idx[-len(sizes):]) == list(documents)


@given(st.integers(2, 200), st.integers(1, 9), st.integers(1, 200))
def test_every_sample_is_served_once_and_the_separate_epoch_last(tokens, seq_length, samples):
    plan = index_maps.plan_epochs(tokens, seq_length, samples)
    shuffle_idx = build_shuffle_idx(plan, np.random.RandomState(1))
    assert shuffle_idx.dtype == np.uint32
    assert sorted(shuffle_idx) == list(range(plan.samples))
    if LastEpoch(plan).is_separate:
        assert max(shuffle_idx[:LastEpoch(plan).samples_before]) < LastEpoch(plan).samples_before


def test_values_are_megatrons():
    """Written down from the algorithm step by step, with numpy's documented random stream."""
    sizes = np.array([4, 3, 5, 2], dtype=np.int32)  # 14 tokens
    plan = index_maps.plan_epochs(14, 4, 7)  # 3 epochs: (28 - 1) // 4 = 6 are too few
    assert (plan.epochs, plan.samples, LastEpoch(plan).samples_before) == (3, 10, 6)
    assert LastEpoch(plan).samples_needed == 1 and LastEpoch(plan).samples_per_epoch == 3
    assert LastEpoch(plan).is_separate  # 1 < int(0.8 * 3) = 2
    random = np.random.RandomState(1234)
    first, last = [0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3]
    random.shuffle(first)
    random.shuffle(last)
    served, behind = list(range(6)), list(range(6, 10))
    random.shuffle(served)
    random.shuffle(behind)
    ours = np.random.RandomState(1234)
    doc_idx = build_doc_idx(np.arange(4, dtype=np.int32), plan, ours)
    assert doc_idx.tolist() == first + last
    assert build_shuffle_idx(plan, ours).tolist() == served + behind
    assert index_maps.build_sample_idx(sizes, doc_idx, plan).shape == (11, 2)


@pytest.mark.parametrize(("samples", "epochs", "apart"), [
    (99, 1, False), (100, 2, True), (177, 2, True), (178, 2, False), (199, 2, False),
    (200, 3, True),
])
def test_the_last_epoch_is_apart_below_80_percent(samples, epochs, apart):
    # 1,000 tokens: 99 samples of 10 in one epoch, 199 in two; int(0.8 * 99) = 79.
    plan = index_maps.plan_epochs(1000, 10, samples)
    assert (plan.epochs, LastEpoch(plan).is_separate) == (epochs, apart)


def test_mismatch_tells_maps_of_other_data():
    sizes = np.array([4, 3, 5, 2], dtype=np.int32)
    documents = np.arange(4, dtype=np.int32)
    plan = index_maps.plan_epochs(14, 4, 3)
    random = np.random.RandomState(1)
    doc_idx = build_doc_idx(documents, plan, random)
    maps = (doc_idx, index_maps.build_sample_idx(sizes, doc_idx, plan),
            build_shuffle_idx(plan, random))
    assert index_maps.mismatch(sizes, documents, plan, *maps) is None
    assert "lengths" in index_maps.mismatch(sizes[::-1], documents, plan, *maps)
    assert "other documents" in index_maps.mismatch(sizes, documents + 1, plan, *maps)
    shorter = index_maps.plan_epochs(20, 4, 3)
    assert "tokens" in index_maps.mismatch(sizes, documents, shorter, *maps)
    twice = (np.array([0, 0, 2, 3], np.int32), *maps[1:])
    assert "once an epoch" in index_maps.mismatch(sizes, documents, plan, *twice)



@pytest.mark.parametrize(("split", "documents", "bounds"), [
    ("969, 30, 1", 1000, [0, 969, 999, 1000]),
    ("969,30,1", 35, [0, 34, 35, 35]),
    ("949,50,1", 1813, [0, 1720, 1811, 1813]),
    ("100,0,0", 7, [0, 7, 7, 7]),
    ("100", 7, [0, 7, 7, 7]),
    ("1/1", 4, [0, 2, 4, 4]),
    ("1,1", 3, [0, 1, 3, 3]),  # 1.5 rounds to 2 twice; all boundaries move back by one
    ("0,1,1", 3, [0, 0, 1, 3]),
])
def test_split_boundaries(split, documents, bounds):
    assert split_boundaries(split, documents) == bounds


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=3), st.integers(0, 10**6))
def test_splits_cover_all_documents(weights, documents):
    assume(any(weights))
    bounds = split_boundaries(",".join(map(str, weights)), documents)
    assert bounds[0] == 0 and bounds[-1] == documents and bounds == sorted(bounds)


@pytest.mark.parametrize("split", ["", "a,b", "1,2,3,4", "0,0,0", "-1,2", "nan", "inf,1"])
def test_bad_splits_are_refused(split):
    with pytest.raises(UserError, match="--split"):
        split_boundaries(split, 10)

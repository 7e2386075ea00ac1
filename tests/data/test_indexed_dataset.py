"""The .bin/.idx format: hand-computed bytes, and every way in which a pair can be broken."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter, token_dtype
from minimegatron.data.atomic import AtomicFile
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.errors import UserError

# Two documents, [1, 2, 3] and [258], written out byte by byte.
HEADER = (b"MMIDIDX\x00\x00" + b"\x01\0\0\0\0\0\0\0" + b"\x08"
          + b"\x02\0\0\0\0\0\0\0" + b"\x03\0\0\0\0\0\0\0")
SIZES = b"\x03\0\0\0" + b"\x01\0\0\0"
POINTERS = b"\0\0\0\0\0\0\0\0" + b"\x06\0\0\0\0\0\0\0"
DOCUMENTS = b"\0\0\0\0\0\0\0\0" + b"\x01\0\0\0\0\0\0\0" + b"\x02\0\0\0\0\0\0\0"


def test_bytes_are_megatrons(write_pair):
    prefix = write_pair([[1, 2, 3], [258]])
    assert len(HEADER) == 34
    with open(prefix + ".bin", "rb") as file:
        assert file.read() == b"\x01\0\x02\0\x03\0\x02\x01"
    with open(prefix + ".idx", "rb") as file:
        assert file.read() == HEADER + SIZES + POINTERS + DOCUMENTS


def test_forty_sequences_take_842_bytes(write_pair):
    prefix = write_pair([[1, 2]] * 40)
    assert os.path.getsize(prefix + ".idx") == 842


def test_int32_has_code_4(write_pair):
    prefix = write_pair([[70000, -1]], dtype=np.int32)
    with open(prefix + ".idx", "rb") as file:
        assert file.read()[17] == 4
    assert IndexedDataset(prefix)[0].tolist() == [70000, -1]


def test_dtype_by_vocabulary_size():
    assert token_dtype(65499) == np.uint16
    assert token_dtype(65500) == np.int32


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.lists(st.integers(0, 65535), max_size=9), max_size=9))
def test_reads_what_was_written(write_pair, documents):
    data = IndexedDataset(write_pair(documents))
    assert [sequence.tolist() for sequence in data] == documents
    assert data.document_indices.tolist() == list(range(len(documents) + 1))


def test_several_sequences_make_a_document(tmp_path):
    with IndexedDatasetWriter(tmp_path / "x", np.uint16) as writer:
        for sequence in ([1], [2, 3]):
            writer.add_sequence(sequence)
        writer.end_document()
    assert IndexedDataset(tmp_path / "x").document_indices.tolist() == [0, 2]


def test_get_reads_parts(in_order):
    data = IndexedDataset(in_order([4, 6]))
    assert data.get(1, 2).tolist() == [6, 7, 8, 9]
    assert data.get(1, 2, 3).tolist() == [6, 7, 8]
    with pytest.raises(IndexError):
        data.get(1, 2, 5)


def test_tokens_are_mapped_not_loaded(in_order):
    data = IndexedDataset(in_order([100] * 100, dtype=np.int32))
    assert data[99].tolist() == list(range(9900, 10000))
    with pytest.raises(ValueError, match="read-only"):
        data[0][0] = 1


def replace(position, new):
    return lambda index: index[:position] + new + index[position + len(new):]


@pytest.mark.parametrize(("damage", "says"), [
    (lambda index: b"", "truncated: 0 bytes"),
    (lambda index: index[:20], "truncated: 20 bytes"),
    (lambda index: index[:-1], "truncated: 81 bytes, but 2 sequences and 3 boundaries take 82"),
    (lambda index: index + b"x", "too long"),
    (replace(0, b"PK"), "not a Megatron mmap index"),
    (replace(9, b"\x02"), "format version 2"),
    (replace(17, b"\x63"), "dtype code 99"),
    (replace(18, b"\xff" * 8), "truncated"),
    (replace(34, b"\xff\xff\xff\xff"), "sequence 0 has a negative length"),
    (replace(34, b"\x09"), "the .bin is too short"),
    (replace(34, b"\x01"), "the .bin is too long"),
    (replace(50, b"\x04"), "byte positions"),
    (replace(58, b"\x01"), "do not run from 0 to 2"),
    (replace(74, b"\x03"), "do not run from 0 to 2"),
    (replace(66, b"\x03"), "do not ascend"),
])
def test_a_damaged_index_is_named_and_explained(write_pair, damage, says):
    prefix = write_pair([[1, 2, 3], [258]])
    with open(prefix + ".idx", "r+b") as file:
        index = damage(file.read())
        file.seek(0)
        file.truncate()
        file.write(index)
    with pytest.raises(UserError) as caught:
        IndexedDataset(prefix)
    text = str(caught.value)
    assert says in text and prefix + ".idx" in text and "preprocess_data.py" in text


def test_a_cut_bin_is_named(write_pair):
    prefix = write_pair([[1, 2, 3]])
    os.truncate(prefix + ".bin", 4)
    with pytest.raises(UserError, match=r"pair\.bin holds 4 bytes.*too short"):
        IndexedDataset(prefix)


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_a_missing_file_is_named(write_pair, missing):
    prefix = write_pair([[1]])
    os.remove(prefix + missing)
    with pytest.raises(UserError, match=re.escape(f"no data file {prefix}{missing}")):
        IndexedDataset(prefix)


def test_a_prefix_with_ending_gets_the_right_one(write_pair):
    prefix = write_pair([[1]])
    with pytest.raises(UserError, match=re.escape(f"without its ending, {prefix}")):
        IndexedDataset(prefix + ".bin")


def test_a_token_that_does_not_fit_is_refused_and_nothing_left(tmp_path, write_pair):
    with pytest.raises(ValueError, match="65536"):
        write_pair([[1], [65536]])
    assert os.listdir(tmp_path) == []


def test_an_error_leaves_the_older_pair(tmp_path, write_pair):
    prefix = write_pair([[7, 8]])
    with pytest.raises(RuntimeError), IndexedDatasetWriter(prefix, np.uint16) as writer:
        writer.add_sequence([1])
        raise RuntimeError
    assert IndexedDataset(prefix)[0].tolist() == [7, 8]
    assert sorted(os.listdir(tmp_path)) == ["pair.bin", "pair.idx"]


def test_leftovers_of_a_killed_writer_go_with_the_next(tmp_path, write_pair):
    code = ("import os, sys, numpy\n"
            "from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter\n"
            "IndexedDatasetWriter(sys.argv[1], numpy.uint16).add_sequence([1] * 100000)\n"
            "os.kill(os.getpid(), 9)")
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "pair")])
    assert killed.returncode == -9
    assert len(os.listdir(tmp_path)) == 2
    write_pair([[1]])
    assert sorted(os.listdir(tmp_path)) == ["pair.bin", "pair.idx"]


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    first, second = AtomicFile(tmp_path / "x"), AtomicFile(tmp_path / "x")
    first.file.write(b"first")
    second.file.write(b"second")
    for atomic in (second, first):
        atomic.finish()
        atomic.rename()
    assert (tmp_path / "x").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["x"]

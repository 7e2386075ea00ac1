"""preprocess_data.py as a user runs it: good input, every bad input, full disks, signals."""

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corpus_tools.foreign_flags import PREPROCESS
from corpus_tools.preprocess import build_parser, main
from minimegatron.data.indexed_dataset import IndexedDataset
from warmranks import run_program

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parents[2] / "code" / "preprocess_data.py"


@pytest.fixture
def command(tmp_path, vocabulary):
    def make(source, *more, prefix="out"):
        return [sys.executable, str(PROGRAM), "--input", str(source), "--output-prefix",
                str(tmp_path / prefix), "--tokenizer-type", "GPT2BPETokenizer", "--vocab-file",
                str(vocabulary[0]), "--merge-file", str(vocabulary[1]), "--append-eod", *more]

    return make


@pytest.fixture
def preprocess(command, tmp_path):
    """Run it; returns (exit code, stderr). A failure must leave no file behind."""

    def run(source, *more, **options):
        before = set(os.listdir(tmp_path))
        done = run_program(main, command(source, *more, **options)[1:], timeout=60)
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode:
            assert set(os.listdir(tmp_path)) == before
        return done.returncode, done.stderr

    return run


@pytest.fixture
def refused(preprocess, tmp_path):
    """Give these bytes as input; returns the error's text."""

    def run(content, *more):
        source = tmp_path / "bad.jsonl"
        source.write_bytes(content)
        code, stderr = preprocess(source, *more)
        assert code == 1
        return stderr.split("error: ", 1)[1]

    return run


def read(tmp_path, name="out_text_document"):
    return [sequence.tolist() for sequence in IndexedDataset(tmp_path / name)]


def test_every_document_with_its_end(preprocess, jsonl, tmp_path, texts, tokenizer):
    code, stderr = preprocess(jsonl, "--json-keys", "text", "--dataset-impl", "mmap", "--workers",
                              "2", "--log-interval", "4")
    assert code == 0
    assert read(tmp_path) == [[*tokenizer.tokenize(text), tokenizer.eod] for text in texts]
    for line in (f"Opening {jsonl}", "Vocab size: 1000", f"Output prefix: {tmp_path / 'out'}",
                 "Time to startup: ", "Processed 4 documents (", "Processed 8 documents ("):
        assert line in stderr
    assert f"Processed {len(texts)} documents (" in stderr


def test_workers_do_not_change_a_byte(preprocess, jsonl, tmp_path):
    for workers in ("1", "3"):
        assert preprocess(jsonl, "--workers", workers, prefix=workers)[0] == 0
    for suffix in (".bin", ".idx"):
        files = [tmp_path / f"{workers}_text_document{suffix}" for workers in "13"]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_without_append_eod_and_empty_texts(command, tmp_path, tokenizer):
    source = tmp_path / "x.jsonl"
    source.write_text('{"text": "one"}\n\n{"text": ""}\n{"text": "two"}')
    line = [word for word in command(source) if word != "--append-eod"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert "Skipped 1 empty texts." in done.stderr
    assert read(tmp_path) == [tokenizer.tokenize("one"), tokenizer.tokenize("two")]


def test_two_keys_make_two_pairs(preprocess, tmp_path, tokenizer):
    source = tmp_path / "x.jsonl"
    source.write_text('{"a": "one", "b": "1"}\n{"a": "two", "b": ""}\n')
    assert preprocess(source, "--json-keys", "a", "b")[0] == 0
    assert read(tmp_path, "out_b_document") == [[*tokenizer.tokenize("1"), tokenizer.eod]]
    assert len(read(tmp_path, "out_a_document")) == 2


@pytest.mark.parametrize(("name", "compress"), [
    ("x.jsonl.gz", gzip.compress), ("x.jsonl.xz", lzma.compress), ("x.jsonl", lzma.compress),
    ("x.jsonl.bz2", bz2.compress)])
def test_compression_and_byte_order_mark(preprocess, tmp_path, tokenizer, name, compress):
    source = tmp_path / name
    source.write_bytes(compress("\ufeff{\"text\": \"é\"}\n".encode()))
    assert preprocess(source)[0] == 0
    assert read(tmp_path) == [[*tokenizer.tokenize("é"), tokenizer.eod]]


@pytest.mark.parametrize(("content", "says"), [
    (b'{"text": "a"}\n{"text": "b",}\n', "bad.jsonl, line 2, column "),
    (b'{"text": "a"}\n{"text": "b"\n', "line 2, column 13: not JSON (Expecting ',' delimiter)"),
    (b"plain words\n", "line 1, column 1: not JSON (Expecting value); the line begins "
                       "'plain words'"),
    (b'{"text": "' + b"x" * 500 + b"\n", "begins '{\"text\": \"" + "x" * 50 + "...'"),
    (b"[1, 2]\n", "line 1: a JSON list, not an object"),
    (b'{"text": "a"}\n{"body": "b", "id": 1}\n', "line 2: no key 'text' (its keys: 'body', 'id')"),
    (b'{"text": null}\n', "line 1: the value of 'text' is NoneType, not a string"),
    (b'{"text": 5}\n', "the value of 'text' is int, not a string"),
    (b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2, column 14: the byte 0xe9 is not UTF-8"),
    (b'{"text": "a \\ud800 b"}\n', "line 1: the text has a lone surrogate, \\ud800"),
    (b"[" * 100_000 + b"\n", "line 1: not readable as JSON"),
    (b'{"text": ' + b"9" * 5000 + b"}\n", "line 1: not readable as JSON"),
    (b"", "contains no text (0 documents, all empty)"),
    (b'\n  \n{"text": ""}\n', "contains no text (1 documents, all empty)"),
])
def test_bad_input_is_refused_with_the_place(refused, content, says):
    assert says in refused(content)


def test_an_error_after_many_documents_leaves_nothing(refused):
    assert "line 2001, column 1" in refused(b'{"text": "some words"}\n' * 2000 + b"x\n")


def test_a_damaged_gzip_is_named(preprocess, tmp_path, jsonl):
    source = tmp_path / "cut.jsonl.gz"
    source.write_bytes(gzip.compress(jsonl.read_bytes())[:-500])
    code, stderr = preprocess(source)
    assert code == 1 and "cut.jsonl.gz is corrupted after line" in stderr
    source.write_bytes(b"no gzip")
    code, stderr = preprocess(source)
    assert code == 1 and "cut.jsonl.gz is corrupted after line 0" in stderr


def test_another_compression_is_named(preprocess, tmp_path):
    source = tmp_path / "x.jsonl"
    source.write_bytes(bytes.fromhex("28b52ffd") + b"xyz")
    code, stderr = preprocess(source)
    assert code == 1 and "is compressed with zstd, which Python 3." in stderr
    assert f"decompress it first: zstd -d {source}" in stderr
    source.write_bytes(lzma.compress(b"{}" * 5000)[:-40])
    assert "x.jsonl is corrupted after line" in preprocess(source)[1]


@pytest.mark.parametrize(("flags", "says"), [
    (["--vocab", "v.txt"], "--vocab v.txt: here it is called --vocab-file"),
    (["--partitions", "4"], "--partitions 4: a flag of Megatron-LM, but one program reads the "
     "whole input, with the threads of --workers; use --workers instead"),
    (["--tokenizer-model", "hf"], "--tokenizer-model hf belongs to --tokenizer-type "
     "HuggingFaceTokenizer, but the type is GPT2BPETokenizer"),
    (["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "hf"], "vocab.json belongs "
     "to --tokenizer-type GPT2BPETokenizer, but the type is HuggingFaceTokenizer"),
    (["--tiktoken-pattern", "v2"], "or one in Hugging Face's format; leave it out"),
    (["--tokenizer-name-or-path", "gpt2"], "use --tokenizer-type HuggingFaceTokenizer "
     "--tokenizer-model instead"),
    (["--workers", "two", "--appendeod"], "invalid int value: 'two'\nerror: unrecognized argument "
     "--appendeod; did you mean --append-eod?"),
    (["--split-sentences"], "--split-sentences is not supported"),
    (["--keep-newlines"], "--keep-newlines is not supported"),
    (["--dataset-impl", "lazy"], "--dataset-impl lazy is not supported: use mmap"),
    (["--workers", "0"], "--workers 0"),
    (["--log-interval", "-1"], "--log-interval -1"),
    (["--json-keys", "text", "text"], "a key is repeated"),
    (["--tokenizer-type", "BertWordPieceCase"], "--tokenizer-type BertWordPieceCase"),
    (["--vocab-file", "nowhere.json"], "--vocab-file nowhere.json does not exist"),
    (["--output-prefix", "/nowhere/out"], "there is no folder /nowhere"),
])
def test_flags_are_refused_by_name(preprocess, jsonl, flags, says):
    code, stderr = preprocess(jsonl, *flags)
    assert code == 1 and says in stderr


def test_harmless_flags_of_megatron_are_named_once(preprocess, jsonl):
    code, stderr = preprocess(jsonl, "--partitions", "1", "--keep-sequential-samples", "--lang",
                              "english")
    assert code == 0
    assert stderr.count("no effect here: --partitions (1 is what happens anyway); "
                        "--keep-sequential-samples (documents always keep their order)") == 1


def test_every_flag_of_the_table_has_one_place():
    placed = [{option for action in build_parser()._actions for option in action.option_strings},
              PREPROCESS.harmless.keys(), PREPROCESS.reasons.keys()]
    assert PREPROCESS.values.keys() <= set().union(*placed)
    assert not placed[0] & PREPROCESS.values.keys()
    assert {*PREPROCESS.instead, *PREPROCESS.harmless_values} <= placed[2]


def test_missing_input_and_folder(preprocess, tmp_path):
    assert "--input /nowhere.jsonl does not exist" in preprocess("/nowhere.jsonl")[1]
    assert "is a folder" in preprocess(tmp_path)[1]


def test_a_full_disk_leaves_the_older_pair(preprocess, command, jsonl, tmp_path):
    assert preprocess(jsonl)[0] == 0
    older = read(tmp_path)
    big = tmp_path / "big.jsonl"
    big.write_bytes(jsonl.read_bytes() * 5)
    before = sorted(os.listdir(tmp_path))
    # A file may have 64 blocks of 1,024 bytes: the write fails as on a full disk.
    limited = ["bash", "-c", 'ulimit -f 64; exec "$@"', "bash", *command(big)]
    done = subprocess.run(limited, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: cannot write" in done.stderr and "File too large" in done.stderr
    assert "--output-prefix" in done.stderr
    assert sorted(os.listdir(tmp_path)) == before and read(tmp_path) == older


def test_a_full_device_says_no_space(monkeypatch, jsonl, tmp_path, tokenizer):
    """/dev/full refuses the last flush as a full disk does."""
    from corpus_tools import preprocess as module
    from minimegatron.data.atomic import AtomicFile
    from minimegatron.errors import UserError

    def full(self):
        os.dup2(os.open("/dev/full", os.O_WRONLY), self.file.fileno())
        self.file.flush()

    monkeypatch.setattr(AtomicFile, "finish", full)
    with pytest.raises(UserError, match="No space left on device"):
        module.preprocess([jsonl], tmp_path / "out", tokenizer)
    assert os.listdir(tmp_path) == ["text.jsonl"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_leaves_nothing(command, tmp_path, number, code):
    """The input is a pipe that stays open, so the program is certainly in the middle."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    program = subprocess.Popen(command(pipe), stderr=subprocess.PIPE, text=True)
    try:
        with open(pipe, "w"):
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob(".out*.tmp")) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert list(tmp_path.glob(".out*.tmp"))
            program.send_signal(number)
            stderr = program.communicate(timeout=30)[1]
    finally:
        program.kill()
    assert program.returncode == code, stderr
    assert os.listdir(tmp_path) == ["pipe.jsonl"]


def test_json_with_escapes_and_any_script(preprocess, tmp_path, tokenizer):
    texts = ["naïve 日本語 😀\n\ttab", "<|endoftext|>", "\x00\u2028"]
    source = tmp_path / "x.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert preprocess(source)[0] == 0
    documents = read(tmp_path)
    assert [tokenizer.detokenize(ids[:-1]) for ids in documents] == texts
    assert all(ids.count(tokenizer.eod) == 1 for ids in documents)

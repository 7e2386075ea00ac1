"""`lab data`: own text, idempotence, the user's vocabulary and files, refusals."""

import argparse
import json

import pytest

from corpus_tools import cli as data
from corpus_tools import corpus
from corpus_tools import files as data_files
from corpus_tools.train_vocabulary import train_merges, write_vocabulary
from labcore.errors import LabError
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.tokenizer import GPT2BPETokenizer, byte_alphabet

from .lab_data import FILES, GPT2_PREFIX, files, hidden, lab, quiet, small

pytestmark = pytest.mark.slow


def command_line(*words) -> argparse.Namespace:
    top = argparse.ArgumentParser()
    data.add_parser(top.add_subparsers())
    return top.parse_args(["data", *map(str, words)])


def test_own_text(built, jsonl, tmp_path, texts):
    lines = []
    data.make(tmp_path, lines.append, small(jsonl))
    assert set(files(tmp_path)) == FILES and hidden(tmp_path) == {".lock", ".stamp.json"}
    assert files(tmp_path) == files(built[0])  # the same text gives the same bytes
    root = tmp_path / "data"
    for vocab, merge, prefix, entries in (
        ("GPT-2_assets/gpt2-vocab.json", "GPT-2_assets/gpt2-merges.txt",
         GPT2_PREFIX, 900),
        ("bpe-400/vocab.json", "bpe-400/merges.txt", "bpe-400/text_document", 400),
    ):
        ids = json.loads((root / vocab).read_text())
        assert list(ids.values()) == list(range(entries))
        assert list(ids)[:256] == byte_alphabet() and list(ids)[-1] == "<|endoftext|>"
        tokenizer = GPT2BPETokenizer(root / vocab, root / merge)
        tokens = IndexedDataset(root / prefix)
        assert [tokenizer.detokenize(list(ids[:-1])) for ids in tokens] == texts
        assert all(ids[-1] == tokenizer.eod for ids in tokens)
    assert any(f"my-gpt2_text_document: {len(texts)} documents" in line for line in lines)


def test_what_an_image_brings_is_copied_and_not_made(built, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "PREBUILT", built[0] / "data")
    monkeypatch.setattr(data_files.Builder, "build", None)
    data.make(tmp_path, quiet, small(jsonl))
    assert files(tmp_path) == files(built[0]) and hidden(tmp_path) == {".lock", ".stamp.json"}


def test_what_an_image_brings_of_another_text_is_left_alone(built, jsonl, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "PREBUILT", built[1] / "data")
    lines = []
    data.make(tmp_path, lines.append, small(jsonl))
    assert files(tmp_path) == files(built[0]) and not any("copying" in one for one in lines)


def test_a_second_run_touches_nothing(home, jsonl):
    before = {path: path.stat().st_mtime_ns for path in (home / "data").rglob("*")}
    lines = []
    data.make(home, lines.append, small(jsonl))
    assert lines[0].startswith("data is up to date")
    assert before == {path: path.stat().st_mtime_ns for path in (home / "data").rglob("*")}


def test_files_of_the_users_are_kept(jsonl, tmp_path):
    theirs = tmp_path / "data" / "GPT-2_assets" / "gpt2-vocab.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the real one")
    lines = []
    data.make(tmp_path, lines.append, small(jsonl))
    assert theirs.with_name("gpt2-vocab.json.bak").read_text() == "the real one"
    assert any("gpt2-vocab.json was yours: kept as" in line for line in lines)
    assert set(files(tmp_path)) == FILES | {"GPT-2_assets/gpt2-vocab.json.bak"}


@pytest.mark.parametrize("own", [True, False])
def test_ensure_leaves_alone_what_the_student_wrote_over(home, own):
    root = home / "data"
    if not own:
        stamp = json.loads((root / data.STAMP).read_text())
        (root / data.STAMP).write_text(json.dumps(stamp | {"own": False}))
    (root / f"{GPT2_PREFIX}.bin").write_bytes(b"tokens of the student's own")
    lines = []
    data.ensure(home, lines.append)
    assert (root / f"{GPT2_PREFIX}.bin").read_bytes() == b"tokens of the student's own"
    assert lines[-1] == ("changed since `lab data` made it, and kept: "
                         f"{GPT2_PREFIX}.bin")


def test_an_input_in_the_data_folder_survives(tmp_path, texts):
    (tmp_path / "data").mkdir()
    corpus = tmp_path / "data" / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    stamp = {"files": {"corpus.jsonl": corpus.stat().st_size}, "own": False, "key": "",
             "summary": []}
    (tmp_path / "data" / data.STAMP).write_text(json.dumps(stamp))
    data.make(tmp_path, quiet, small(corpus))
    assert corpus.exists()


def test_other_text_replaces_all_and_drops_the_trainers_maps(home, built, jsonl):
    stale = home / "data" / f"{GPT2_PREFIX}_train_indexmap_8ns_4sl_1s_doc_idx.npy"
    stale.touch()
    jsonl.write_text(jsonl.read_text() * 2)
    data.make(home, quiet, small(jsonl))
    assert not stale.exists() and files(home) == files(built[1]) != files(built[0])


def test_several_inputs_are_read_in_order(jsonl, tmp_path, texts):
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "the last one"}\n')
    data.make(tmp_path, quiet, data.DataOptions((str(jsonl), str(more)), gpt2_entries=900,
                                            small_entries=400))
    assert len(IndexedDataset(tmp_path / "data" / GPT2_PREFIX)) == len(texts) + 1


def test_short_text_borrows_the_librarys_for_the_vocabulary_only(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "TRAINING_BYTES", 200_000)
    source = tmp_path / "short.jsonl"
    source.write_text('{"text": "hello hello world"}\n')
    lines = []
    data.make(tmp_path, lines.append, small(source))
    assert any("also trained on the Python library's text" in line for line in lines)
    assert len(IndexedDataset(tmp_path / "data" / GPT2_PREFIX)) == 1


def test_the_users_vocabulary_is_used_as_it_is(jsonl, tmp_path, texts):
    given = tmp_path / "v.json", tmp_path / "m.txt"
    write_vocabulary(train_merges(texts[:5], 643), *given)
    options = small(jsonl, vocab_file=str(given[0]), merge_file=str(given[1]))
    data.make(tmp_path, quiet, options)
    assets = tmp_path / "data" / "GPT-2_assets"
    assert (assets / "gpt2-vocab.json").read_bytes() == given[0].read_bytes()
    assert (assets / "gpt2-merges.txt").read_bytes() == given[1].read_bytes()


@pytest.mark.parametrize(("words", "says"), [
    (["--input", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
    (["--size-mb", "0"], "--size-mb 0"),
    (["--size-mb", "5", "--input", "x"], "--size-mb limits"),
    (["--vocab-file", "/dev/null"], "pass --merge-file, too"),
])
def test_refusals(tmp_path, monkeypatch, words, says):
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    arguments = command_line(*words)
    with pytest.raises(LabError, match=says):
        arguments.run(arguments)


def test_a_vocabulary_of_another_size_is_refused(tmp_path, jsonl, vocabulary):
    with pytest.raises(LabError, match=r"has 1,000 entries, but the labs need GPT-2's 50,257"):
        data.make(tmp_path, quiet, data.DataOptions((str(jsonl),), *map(str, vocabulary)))


def test_an_unwritable_home_is_refused(tmp_path, jsonl):
    (tmp_path / "home").write_text("a file, not a folder")
    with pytest.raises(LabError, match="LAB_HOME"):
        data.make(tmp_path / "home", quiet, small(jsonl))


def test_ensure_keeps_the_users_own(home, built):
    lines = []
    data.ensure(home, lines.append)
    assert files(home) == files(built[0]) and "your own files" in lines[0]


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit):
        command_line("--help")
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in ("--input", "--vocab-file", "--merge-file", "--size-mb"))


def test_the_librarys_text_is_deterministic_and_capped():
    texts = corpus.documents(1_000_000)
    assert texts == corpus.documents(1_000_000)
    assert 900_000 < sum(len(text.encode()) for text in texts) <= 1_000_000
    names = {path.name for path in corpus.files()}
    assert {"os.py", "argparse.py"} <= names
    assert not any("site-packages" in path.parts for path in corpus.files())


@pytest.mark.stress
def test_the_default(tmp_path):
    run = lab(home=tmp_path)
    stderr = run.communicate(timeout=280)[1]
    assert run.returncode == 0, stderr
    root = tmp_path / "data"
    assert len(json.loads((root / "GPT-2_assets" / "gpt2-vocab.json").read_text())) == 50257
    assert len((root / "GPT-2_assets" / "gpt2-merges.txt").read_text("utf-8").split("\n")) == 50002
    assert len(json.loads((root / "bpe-4096" / "vocab.json").read_text())) == 4096
    for prefix in (GPT2_PREFIX, "bpe-4096/text_document"):
        assert IndexedDataset(root / prefix).tokens.size > 1_000_000
    run = lab(home=tmp_path)
    assert "up to date" in run.communicate(timeout=60)[0]

"""`lab data`: own text, idempotence, interruption, the user's vocabulary, refusals."""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corpus_tools import cli as data
from corpus_tools import corpus
from corpus_tools import files as data_files
from corpus_tools.train_vocabulary import train_merges
from labcore.errors import LabError
from minimegatron.data.indexed_dataset import IndexedDataset
from minimegatron.data.tokenizer import GPT2BPETokenizer, byte_alphabet, write_vocabulary

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


def small(jsonl, **more) -> data.Options:
    return data.Options((str(jsonl),), gpt2_entries=900, small_entries=400, **more)


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


def test_own_text(jsonl, tmp_path, texts):
    lines = []
    data.make(tmp_path / "home", lines.append, small(jsonl))
    assert set(files(tmp_path / "home")) == FILES
    assert hidden(tmp_path / "home") == {".lock", ".stamp.json"}
    root = tmp_path / "home" / "data"
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


def test_the_same_text_gives_the_same_bytes(jsonl, tmp_path):
    for home in ("a", "b"):
        data.make(tmp_path / home, quiet, small(jsonl))
    assert files(tmp_path / "a") == files(tmp_path / "b")


def test_what_an_image_brings_is_copied_and_not_made(jsonl, tmp_path, monkeypatch):
    data.make(tmp_path / "image", quiet, small(jsonl))
    monkeypatch.setattr(data, "READY", tmp_path / "image" / "data")
    monkeypatch.setattr(data_files.Builder, "build", None)
    data.make(tmp_path / "home", quiet, small(jsonl))
    assert files(tmp_path / "home") == files(tmp_path / "image")
    assert hidden(tmp_path / "home") == {".lock", ".stamp.json"}


def test_what_an_image_brings_of_another_text_is_left_alone(jsonl, tmp_path, monkeypatch):
    data.make(tmp_path / "image", quiet, small(jsonl, size_mb=1))
    monkeypatch.setattr(data, "READY", tmp_path / "image" / "data")
    lines = []
    data.make(tmp_path / "home", lines.append, small(jsonl))
    assert set(files(tmp_path / "home")) == FILES and not any("copying" in one for one in lines)


def test_a_second_run_touches_nothing(jsonl, tmp_path):
    data.make(tmp_path, quiet, small(jsonl))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}
    lines = []
    data.make(tmp_path, lines.append, small(jsonl))
    assert lines[0].startswith("data is up to date")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "data").rglob("*")}


@pytest.mark.parametrize("damage", [
    lambda root: os.remove(root / f"{GPT2_PREFIX}.idx"),
    lambda root: os.truncate(root / "bpe-400" / "text_document.bin", 10),
    lambda root: (root / ".stamp.json").write_text("{"),
    lambda root: shutil.rmtree(root / "GPT-2_assets"),
])
def test_what_is_missing_or_cut_is_made_again(jsonl, tmp_path, damage):
    data.make(tmp_path, quiet, small(jsonl))
    good = files(tmp_path)
    damage(tmp_path / "data")
    data.make(tmp_path, quiet, small(jsonl))
    assert {name: content for name, content in files(tmp_path).items()
            if not name.endswith(".bak")} == good


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
def test_ensure_leaves_alone_what_the_student_wrote_over(jsonl, tmp_path, monkeypatch, own):
    data.make(tmp_path, quiet, small(jsonl))
    root = tmp_path / "data"
    if not own:
        stamp = json.loads((root / data.STAMP).read_text())
        (root / data.STAMP).write_text(json.dumps(stamp | {"own": False}))
    (root / f"{GPT2_PREFIX}.bin").write_bytes(b"tokens of the student's own")
    lines = []
    data.ensure(tmp_path, lines.append)
    assert (root / f"{GPT2_PREFIX}.bin").read_bytes() == b"tokens of the student's own"
    assert lines[-1] == ("changed since `lab data` made it, and left alone: "
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


def test_other_text_replaces_all_and_drops_the_trainers_maps(jsonl, tmp_path):
    data.make(tmp_path, quiet, small(jsonl))
    stale = tmp_path / "data" / f"{GPT2_PREFIX}_train_indexmap_8ns_4sl_1s_doc_idx.npy"
    stale.touch()
    before = files(tmp_path)
    jsonl.write_text(jsonl.read_text() * 2)
    data.make(tmp_path, quiet, small(jsonl))
    after = files(tmp_path)
    assert set(after) == FILES and not stale.exists()
    tokens = f"{GPT2_PREFIX}.bin"
    assert after[tokens] != before[tokens]


def test_several_inputs_are_read_in_order(jsonl, tmp_path, texts):
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "the last one"}\n')
    data.make(tmp_path, quiet, data.Options((str(jsonl), str(more)), gpt2_entries=900,
                                            small_entries=400))
    assert len(IndexedDataset(tmp_path / "data" / GPT2_PREFIX)) == len(texts) + 1


def test_short_text_borrows_the_librarys_for_the_vocabulary_only(tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "TRAINING_BYTES", 200_000)
    source = tmp_path / "short.jsonl"
    source.write_text('{"text": "hello hello world"}\n')
    lines = []
    data.make(tmp_path, lines.append, small(source))
    assert any("trained on the Python library's text too" in line for line in lines)
    assert len(IndexedDataset(tmp_path / "data" / GPT2_PREFIX)) == 1


def test_the_users_vocabulary_is_used_as_it_is(jsonl, tmp_path, texts):
    given = tmp_path / "v.json", tmp_path / "m.txt"
    write_vocabulary(train_merges(texts[:5], 643), *given)
    options = small(jsonl, vocab_file=str(given[0]), merge_file=str(given[1]))
    data.make(tmp_path, quiet, options)
    assets = tmp_path / "data" / "GPT-2_assets"
    assert (assets / "gpt2-vocab.json").read_bytes() == given[0].read_bytes()
    assert (assets / "gpt2-merges.txt").read_bytes() == given[1].read_bytes()


def test_a_failed_run_leaves_the_older_data(jsonl, tmp_path):
    data.make(tmp_path, quiet, small(jsonl))
    good = files(tmp_path)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(jsonl.read_text() + '{"text": 5}\n')
    with pytest.raises(LabError, match=r"bad\.jsonl, line \d+: the value of 'text' is int"):
        data.make(tmp_path, quiet, small(bad))
    assert files(tmp_path) == good and hidden(tmp_path) == {".lock", ".stamp.json"}
    data.make(tmp_path, quiet, small(jsonl))


@pytest.mark.parametrize(("words", "says"), [
    (["--input", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
    (["--size-mb", "0"], "--size-mb 0"),
    (["--size-mb", "5", "--input", "x"], "--size-mb caps"),
    (["--vocab-file", "/dev/null"], "give --merge-file as well"),
])
def test_refusals(tmp_path, words, says):
    run = lab(*words, home=tmp_path)
    stderr = run.communicate(timeout=60)[1]
    assert run.returncode == 1 and says in stderr and "Traceback" not in stderr


def test_a_vocabulary_of_another_size_is_refused(tmp_path, jsonl, vocabulary):
    with pytest.raises(LabError, match=r"has 1,000 entries; the labs count on GPT-2's 50,257"):
        data.make(tmp_path, quiet, data.Options((str(jsonl),), *map(str, vocabulary)))


def test_an_unwritable_home_is_refused(tmp_path, jsonl):
    (tmp_path / "home").write_text("a file, not a folder")
    with pytest.raises(LabError, match="LAB_HOME"):
        data.make(tmp_path / "home", quiet, small(jsonl))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.4, 1.0])
def test_killed_at_any_point_the_next_run_is_complete(tmp_path, seconds):
    """The real command, killed; then a run on the same text."""
    source = tmp_path / "text.jsonl"
    corpus.write_jsonl(corpus.documents(2_000_000), source)
    run = lab("--input", source, home=tmp_path)
    time.sleep(seconds)
    run.kill()
    run.communicate()
    assert not (tmp_path / "data" / ".stamp.json").exists()
    data.make(tmp_path, quiet, small(source))
    assert set(files(tmp_path)) == FILES
    assert hidden(tmp_path) == {".lock", ".stamp.json"}


@pytest.mark.slow
def test_killed_while_files_are_put_in_place(jsonl, tmp_path, monkeypatch):
    """Stopped after each rename in turn: no stamp, and never an .idx beside another text's .bin."""
    rename = os.replace
    twice = tmp_path / "twice.jsonl"
    twice.write_text(jsonl.read_text() * 2)
    for renames in range(len(FILES) + 2):
        data.make(tmp_path, quiet, small(jsonl))
        left = iter(range(renames))

        def replace(source, target, left=left):
            if ".building" not in str(target) and next(left, None) is None:
                raise KeyboardInterrupt
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                data.make(tmp_path, quiet, small(twice))
        # Before the first rename nothing has changed; from then on nothing vouches for the data.
        assert (tmp_path / "data" / ".stamp.json").exists() == (renames == 0)
        for prefix in (GPT2_PREFIX, "bpe-400/text_document"):
            if (tmp_path / "data" / f"{prefix}.idx").exists():
                IndexedDataset(tmp_path / "data" / prefix)
    data.make(tmp_path, quiet, small(twice))
    assert set(files(tmp_path)) == FILES


def test_two_at_once_wait_for_each_other(jsonl, tmp_path):
    code = ("import sys\nfrom corpus_tools import cli as data\n"
            "data.make(sys.argv[1], print, data.Options((sys.argv[2],), gpt2_entries=900,"
            " small_entries=400))")
    runs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(jsonl)],
                             stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert set(files(tmp_path)) == FILES
    assert any("up to date" in output for output in outputs)


def test_ensure_keeps_the_users_own(jsonl, tmp_path):
    data.make(tmp_path, quiet, small(jsonl))
    before, lines = files(tmp_path), []
    data.ensure(tmp_path, lines.append)
    assert files(tmp_path) == before and "your own files" in lines[0]


def test_importing_lab_data_imports_no_torch():
    code = ("import sys, corpus_tools.cli; "
            "sys.exit('torch' in sys.modules or 'minimegatron' in sys.modules)")
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_names_every_flag():
    top = argparse.ArgumentParser()
    data.add_parser(top.add_subparsers())
    with pytest.raises(SystemExit):
        top.parse_args(["data", "--help"])


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

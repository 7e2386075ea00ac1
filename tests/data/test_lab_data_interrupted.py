"""`lab data` that was interrupted, damaged, or started twice: the next run is complete."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from corpus_tools import cli as data
from labcore.errors import LabError
from minimegatron.data.indexed_dataset import IndexedDataset

from .lab_data import FILES, GPT2_PREFIX, files, hidden, lab, quiet, small

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("damage", [
    lambda root: os.remove(root / f"{GPT2_PREFIX}.idx"),
    lambda root: os.truncate(root / "bpe-400" / "text_document.bin", 10),
    lambda root: (root / ".stamp.json").write_text("{"),
    lambda root: shutil.rmtree(root / "GPT-2_assets"),
])
def test_what_is_missing_or_cut_is_made_again(home, built, jsonl, damage):
    damage(home / "data")
    data.make(home, quiet, small(jsonl))
    assert {name: content for name, content in files(home).items()
            if not name.endswith(".bak")} == files(built[0])


def test_a_failed_run_leaves_the_older_data(home, built, jsonl, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(jsonl.read_text() + '{"text": 5}\n')
    with pytest.raises(LabError, match=r"bad\.jsonl, line \d+: the value of 'text' is int"):
        data.make(home, quiet, small(bad))
    assert files(home) == files(built[0]) and hidden(home) == {".lock", ".stamp.json"}


@pytest.mark.slow
def test_killed_while_it_builds_the_next_run_is_complete(jsonl, built, tmp_path):
    """The real command: its vocabulary of 50,257 entries takes far longer to train."""
    run = lab("--input", jsonl, home=tmp_path)
    staging = tmp_path / "data" / ".building"
    while not staging.exists() and run.poll() is None:
        time.sleep(0.02)
    run.kill()
    run.communicate()
    assert staging.exists() and not (tmp_path / "data" / ".stamp.json").exists()
    data.make(tmp_path, quiet, small(jsonl))
    assert files(tmp_path) == files(built[0]) and hidden(tmp_path) == {".lock", ".stamp.json"}


def test_killed_while_files_are_put_in_place(jsonl, built, tmp_path, monkeypatch):
    """Stopped after each rename in turn: no stamp, and never an .idx beside another text's .bin.
    The files themselves were made before, as in an image."""
    rename = os.replace
    once, twice = jsonl, tmp_path / "twice.jsonl"
    twice.write_text(once.read_text() * 2)

    def make(source):
        monkeypatch.setattr(data, "PREBUILT", built[source == twice] / "data")
        data.make(tmp_path, quiet, small(source))

    for renames in range(len(FILES) + 2):
        make(once)
        left = iter(range(renames))

        def replace(source, target, left=left):
            if ".building" not in str(target) and next(left, None) is None:
                raise KeyboardInterrupt
            rename(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                make(twice)
        # Before the first rename nothing has changed; from then on nothing vouches for the data.
        assert (tmp_path / "data" / ".stamp.json").exists() == (renames == 0)
        for prefix in (GPT2_PREFIX, "bpe-400/text_document"):
            if (tmp_path / "data" / f"{prefix}.idx").exists():
                IndexedDataset(tmp_path / "data" / prefix)
    make(twice)
    assert files(tmp_path) == files(built[1])


def test_two_at_once_wait_for_each_other(jsonl, tmp_path):
    code = ("import sys\nfrom corpus_tools import cli as data\n"
            "data.make(sys.argv[1], print, data.DataOptions((sys.argv[2],), gpt2_entries=900,"
            " small_entries=400))")
    runs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(jsonl)],
                             stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert set(files(tmp_path)) == FILES
    assert any("up to date" in output for output in outputs)

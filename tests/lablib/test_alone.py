"""lablib.alone: a file that must not import the student's other files."""

import importlib

import pytest

from lablib import alone


def test_a_hidden_package_cannot_be_imported_within_the_block(tmp_path, monkeypatch):
    (tmp_path / "hidden_one").mkdir()
    (tmp_path / "hidden_one" / "part.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("hidden_one.part")
    with alone.without("hidden_one"), pytest.raises(ImportError, match="runs this file alone"):
        importlib.import_module("hidden_one.part")
    assert importlib.import_module("hidden_one.part").x == 1


def test_the_time_of_a_call():
    answer, seconds = alone.timed(pow, 2, 3)
    assert answer == 8 and 0 <= seconds < 5

"""lablib.alone: calls without the student's other files, and with a limit of CPU time."""

import importlib
import time

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


def spin():
    while True:
        pass


@pytest.mark.parametrize(("function", "arguments", "result"), [
    (pow, (2, 3), 8), (time.sleep, (0.3,), None), (spin, (), "too slow")])
def test_only_cpu_time_is_limited(function, arguments, result):
    assert alone.within(0.2, function, *arguments) == result

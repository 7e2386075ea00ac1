"""A stand-in's record of its start: every word unchanged, and whether `&` started it."""

import json
import signal

import pytest

from labkit.check import launch_record
from labkit.check.record import record


@pytest.mark.parametrize("word", ["--lr", "", 'a "b" \\ c', "two\nlines\t\x00\x7f", "é 漢 🙂",
                                  "\udcff"])
def test_every_word_arrives_as_it_was(tmp_path, word):
    launch_record.append_launch(str(tmp_path / "record"), "torchrun", [word, word])
    launch_record.append_launch(str(tmp_path / "record"), word, [])
    first, second = map(json.loads, (tmp_path / "record").read_text().splitlines())
    assert (first["program"], first["arguments"]) == ("torchrun", [word, word])
    assert (second["program"], second["arguments"], second["step"]) == (word, [], -1)


@pytest.mark.parametrize("caller", [signal.SIG_DFL, signal.SIG_IGN])
def test_only_what_the_script_starts_with_an_ampersand_is_in_the_background(tmp_path, caller):
    (tmp_path / "mine.sh").write_text("#!/bin/bash\ntorchrun one\ntorchrun two &\nwait\n")
    before = signal.signal(signal.SIGQUIT, caller)
    try:
        result = record(tmp_path, "mine.sh")["launches"]
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert [(entry["arguments"], entry["background"]) for entry in result] == [
        (["one"], False), (["two"], True)]

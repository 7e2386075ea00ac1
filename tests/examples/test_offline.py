"""offline.py: weights that the programs load, and questions whose answers are in their contexts."""

import json
import math

import pytest

import offline
import setting
from gpipe import flags

pytestmark = pytest.mark.slow


def test_answers_are_parts_of_their_contexts():
    paragraphs = offline.squad()["data"][0]["paragraphs"]
    assert len(paragraphs) > 500
    for paragraph in paragraphs:
        (question,) = paragraph["qas"]
        (answer,) = question["answers"]
        start = answer["answer_start"]
        assert paragraph["context"][start:start + len(answer["text"])] == answer["text"]
        assert question["id"] in question["question"]


def test_gpipe_starts_from_the_stand_ins(in_home, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["offline.py", "made", "--steps", "8", "--batch-size", "4",
                                     "--seq-length", "16"])
    monkeypatch.chdir(in_home)
    offline.main()
    printed = capsys.readouterr().out
    assert "made/gpt2: a loss of" in printed and "after 8 steps" in printed
    questions = in_home / "made" / "questions.json"
    count = len(json.loads(questions.read_text())["data"][0]["paragraphs"])
    assert f"{count} questions" in printed
    run = setting.read(flags().parse_args(["--pretrained", "made/gpt2", "--dataset",
                                           str(questions), "--seq-length", "32"]))
    assert len(run.samples[0]) == count and run.size.layers == 12
    loss = float(printed.split("a loss of ")[1].split()[0])
    assert loss < math.log(run.size.vocabulary)  # it has learned something
    layer = run.pretrained.layer(1)
    assert layer["qkv.weight"].shape == (3 * run.size.hidden, run.size.hidden)

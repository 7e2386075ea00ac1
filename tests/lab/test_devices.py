"""`lab devices`: which virtual GPUs there are, and what is known about each."""

import json
import os
import subprocess
import sys

import pytest

from lab import cli
from virtualgpu.core.cards import CARDS, find


def test_the_table_has_a_row_for_each_card(capsys):
    assert cli.main(["devices"]) == 0
    shown = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in shown[3:3 + len(CARDS)]}
    assert list(rows) == list(CARDS) and shown[0].startswith("virtual GPUs")
    for text in ("Tesla V100-SXM2-16GB", " 15.78 GiB ", " 900 GB/s ", " 15.7 ", " 125 ", " - ",
                 "NVLink 150 GB/s, PCIe 16 GB/s", "[1]"):
        assert text in rows["v100-sxm2-16gb"]
    assert "NVLink" not in rows["rtx3090"]
    assert "[1] NVIDIA Tesla V100 GPU Accelerator, March 2018" in shown


def test_one_card_with_its_sources(capsys):
    assert cli.main(["devices", "V100"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("virtual v100-sxm2-16gb (also v100, v100-16gb): Tesla V100-SXM2-16GB")
    assert "fp16         125 TFLOP/s; programs reach 76%" in shown and "bf16" not in shown
    assert "attention    FlashAttention reaches up to 40% of the 16-bit peak" in shown
    for source in find("v100").sources:
        assert source in shown


def test_which_attention_kernel_a_card_runs(capsys):
    assert cli.main(["devices", "h100"]) == 0
    shown = capsys.readouterr().out
    assert "attention    FlashAttention-2 reaches up to 35% of the 16-bit peak" in shown


def test_json_has_all_fields(capsys):
    assert cli.main(["devices", "--json", "a100"]) == 0
    one = json.loads(capsys.readouterr().out)
    assert one["virtual"] is True and one["aliases"] == ["a100"]
    assert one["memory"] == CARDS["a100-80gb"].memory
    assert one["efficiency"]["matmul"] == CARDS["a100-80gb"].efficiency.matmul
    assert cli.main(["devices", "--json"]) == 0
    assert [card["name"] for card in json.loads(capsys.readouterr().out)] == list(CARDS)


@pytest.mark.parametrize("name", ["rtx3080", ""])
def test_an_unknown_card_is_refused_with_the_nearest(name, capsys):
    assert cli.main(["devices", name]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lab: error: devices ") and f"{name!r}; nearest: " in error
    assert name != "rtx3080" or "nearest: rtx3090" in error


def test_the_commands_do_not_load_the_cards():
    code = "import sys, lab.cli; lab.cli.build_parser(); print('virtualgpu' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_reader_that_has_stopped_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)  # as in `lab devices | head`, but before the first line
    with os.fdopen(writer) as stdout:
        program = "import lab.cli, sys; sys.exit(lab.cli.main(['devices']))"
        done = subprocess.run([sys.executable, "-c", program], stdout=stdout,
                              stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")

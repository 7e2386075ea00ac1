"""`make gpu` without a GPU: what it prints, and that no part can stop the others."""

from __future__ import annotations

import json
import math

import psutil
import pytest

from benchmarks.gpu import machine, page, parts
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.runner import run_parts
from labcore.workspace import CHECKOUT

FAKES = "tests.make_gpu.parts"
RESULTS = CHECKOUT / "benchmarks" / "results"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    return folder, run_parts(parts.find_parts(FAKES).values(), folder, quick=True)


def test_every_module_with_run_is_a_part():
    result = parts.find_parts(FAKES)
    assert list(result) == ["crashes", "hangs", "raises", "works"]
    assert result["hangs"].limit == 2 and result["works"].limit == parts.SECONDS
    assert result["works"].title == "A part that works"
    assert {"parity", "mfu", "layouts", "paths", "nccl"} <= set(parts.find_parts())


def test_a_part_that_fails_does_not_stop_the_others_and_keeps_what_it_measured(outcomes):
    folder, done = outcomes
    assert not done["works"].result.failures and done["works"].result.notes == ["quick: True"]
    crashed, hung, raised = (done[name].result.failures for name in ("crashes", "hangs", "raises"))
    assert len(crashed) == 1 and "exit code -9" in crashed[0] and "just before" in crashed[0]
    assert len(hung) == 1 and "time limit of 2 s" in hung[0]
    assert len(raised) == 1 and raised[0].endswith("Tried to allocate 2.00 GiB")
    assert done["hangs"].result.tables == [Table("Before the limit", ["a"], [[1]])]
    child = int((folder / "hangs.log").read_text().split()[1])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == "zombie"


def test_the_files_hold_all_parts_and_keep_those_of_an_earlier_run(outcomes):
    folder, done = outcomes
    header = {"GPUs": "1 x NVIDIA H100 80GB HBM3", "topology": "two\nlines"}
    page.write(folder, header, {"works": done["works"]})
    page.write(folder, header, page.merged(folder, header, {"raises": done["raises"]}))
    text = (folder / page.PAGE).read_text()
    assert "| x\\|y | 12,346 |" in text and "**1 failed**" in text
    assert list(json.loads((folder / page.JSON).read_text())["parts"]) == ["raises", "works"]
    other = page.merged(folder, {**header, "GPUs": "8 x"}, {"raises": done["raises"]})
    assert list(other) == ["raises"]


def test_a_result_survives_json():
    result = Result([Table("t", ["a"], [[1], [None], [0.5]])], ["note"], ["failure"])
    assert Result.from_json(result.to_json()) == result
    assert Result.from_json(Result([Table("t", ["a"], [[math.nan]])]).to_json()
                            ).tables[0].rows == [["nan"]]
    with pytest.raises(ValueError, match="2 cells for 1 columns"):
        result.tables[0].add(1, 2)


def test_without_a_gpu_it_prints_one_line_and_exits_0(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path / "results")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("make gpu: nothing to do without a GPU (torch ")
    assert said.count("\n") == 1 and not (tmp_path / "results").exists()


@pytest.mark.parametrize(("given", "nearest"), [("party", "parity"), ("mfu,nccI", "nccl")])
def test_an_unknown_part_is_named_with_the_nearest_one(given, nearest, capsys):
    assert main(["--parts", given]) == 2
    assert f"nearest: --parts {nearest}" in capsys.readouterr().err


def test_a_failed_part_makes_the_exit_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(machine, "cuda_problem", lambda: None)
    monkeypatch.setattr(machine, "describe", lambda: {"GPUs": "1 x H100"})
    result = parts.find_parts(FAKES)
    monkeypatch.setattr("benchmarks.gpu.__main__.find_parts", lambda: result)
    assert main(["--out", str(tmp_path), "--parts", "works"]) == 0
    assert main(["--out", str(tmp_path), "--parts", "raises,works"]) == 1
    assert "raises: FAILED (1)" in capsys.readouterr().out
    assert "## raises" in (tmp_path / page.PAGE).read_text()


@pytest.mark.parametrize("path", sorted(RESULTS.glob("gpu_*.json")), ids=lambda path: path.stem)
def test_a_published_page_is_that_of_its_figures(path):
    data = json.loads(path.read_text())
    assert path.with_suffix(".md").read_text() == page.render(
        data["machine"], page.outcomes_of(data))

"""The trainer stays small enough to read: what a step imports, the core, and its heart."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys

import pytest

from labcore.workspace import CODE
from tests.ports import free_port

from .conftest import MODEL

PAGE = (CODE.parent / "docs" / "trainer.md").read_text()
LINK = re.compile(r"\(\.\./code/([\w/]+\.py)\)")
HEART_SECTION, OPTIONAL_SECTION = (
    PAGE[PAGE.index(title):PAGE.index("\n## ", PAGE.index(title) + 1)]
    for title in ("## One micro-batch", "## Optional features"))
HEART = ["pretrain_gpt.py", *LINK.findall(HEART_SECTION)]
OPTIONAL = LINK.findall(OPTIONAL_SECTION)
STEP = "A TP 2 x PP 2 fp16 step on the CPU imports"
# New features belong in files of their own, so these limits should only ever go down.
LIMITS = {STEP: 5200, "The core has": 4760, "The heart has": 2860}
FILE_LIMIT, FUNCTION_LIMIT = 300, 40
FILES = sorted((CODE / "minimegatron").rglob("*.py"))


def name_of(path) -> str:
    return str(path.relative_to(CODE))


def lines(names) -> int:
    """Return the lines of files, with docstrings and comments."""
    return sum(len((CODE / name).read_text().splitlines()) for name in names)


@pytest.fixture(scope="module")
def step_modules(dataset, train) -> set[str]:
    """The modules that the ranks of a TP 2 x PP 2 fp16 run import when its index maps exist."""
    flags = "--fp16 --train-iters 2 --global-batch-size 4 --eval-iters 0"
    train(flags)
    flags += " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    done = subprocess.run(
        [sys.executable, "-m", "tests.minimegatron.imported", str(free_port()),
         *shlex.split(MODEL + dataset.flags + flags)],
        cwd=CODE.parent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert sorted(rank["rank"] for rank in ranks) == [0, 1, 2, 3]
    return {name for rank in ranks for name in rank["modules"]
            if not name.startswith("virtualgpu/")}


@pytest.mark.slow
def test_the_trainer_is_as_small_as_its_page_says(step_modules, capsys):
    core = set(map(name_of, FILES)) - set(OPTIONAL)
    figures = dict(zip(LIMITS, map(lines, (step_modules, core, HEART)), strict=True))
    with capsys.disabled():
        print("", *(f"{name} {count:,} lines" for name, count in figures.items()), sep="\n")
    for name, count in figures.items():
        assert count <= LIMITS[name], f"{name} {count:,} lines"
        shown = re.search(rf"{name} ([\d,]+) lines", PAGE)
        assert shown and abs(int(shown[1].replace(",", "")) - count) <= 100, \
            f"docs/trainer.md: {name} {count:,} lines"


@pytest.mark.slow
def test_a_plain_step_imports_no_optional_feature(step_modules):
    assert not step_modules & set(OPTIONAL)


def test_optional_features_are_files_of_the_trainer():
    assert OPTIONAL and set(OPTIONAL) <= set(map(name_of, FILES))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LIMIT
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert not [node.name for node in functions if "table" not in path.parts
                and node.end_lineno - node.lineno + 1 > FUNCTION_LIMIT]

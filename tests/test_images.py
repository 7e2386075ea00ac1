"""Figures of the labs come from code."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_every_figure_is_what_its_code_draws():
    done = subprocess.run([sys.executable, ROOT / "images" / "src" / "draw.py", "--check"],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}: run `make build`"


def test_every_figure_has_code():
    drawn = {path.stem for path in (ROOT / "images").glob("*.svg")}
    assert drawn == {path.stem for path in (ROOT / "images" / "src").glob("*.py")} - {
        "draw", "style"}


def test_every_figure_is_shown():
    pages = [*ROOT.glob("solutions/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    text = "".join(page.read_text() for page in pages)
    assert not [path.name for path in (ROOT / "images").glob("*.svg") if path.name not in text]

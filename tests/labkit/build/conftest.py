"""A small lab that holds one of everything, in a checkout of its own."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLE = (Path(__file__).parent / "90_sample.py.txt").read_text()


@pytest.fixture
def root(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "sample.svg").write_text("<svg/>")
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / "90_sample.py").write_text(SAMPLE)
    return tmp_path


@pytest.fixture
def author(root) -> Callable[..., Path]:
    """Write the lab with pieces of its text replaced; each must be there."""

    def write(*changes: tuple[str, str], name: str = "90_sample") -> Path:
        text = SAMPLE
        for old, new in changes:
            assert text.count(old) >= 1, old
            text = text.replace(old, new, 1)
        path = root / "solutions" / f"{name}.py"
        path.write_text(text)
        return path

    return write


def line_of(path: Path, piece: str) -> int:
    """The first line of a file that holds `piece`, counted from 1."""
    return 1 + path.read_text()[:re.search(re.escape(piece), path.read_text()).start()].count("\n")

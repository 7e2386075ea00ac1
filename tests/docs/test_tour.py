"""The tour through the trainer is that of today's code: no file left out, sizes and names true."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

CODE = ROOT / "code"
STOP = re.compile(r"\[`([\w/]+\.py)`\]\(\.\./code/([\w/]+\.py)\)\s\((\d+)(?:: ([^)]*))?\)")
STOPS = STOP.findall((ROOT / "docs" / "trainer.md").read_text())


def test_no_file_is_left_out_and_none_comes_twice():
    files = sorted(str(path.relative_to(CODE)) for path in (CODE / "minimegatron").rglob("*.py")
                   if path.name != "__init__.py")
    assert sorted(path for _, path, _, _ in STOPS if path.startswith("minimegatron/")) == files


@pytest.mark.parametrize(("shown", "path", "lines", "names"), STOPS, ids=[one[1] for one in STOPS])
def test_a_stop_is_as_it_says(shown, path, lines, names):
    text = (CODE / path).read_text()
    assert shown == path.removeprefix("minimegatron/")
    assert abs(len(text.splitlines()) - int(lines)) <= max(10, 0.2 * int(lines)), \
        f"{path} has {len(text.splitlines())} lines"
    for name in re.findall(r"`(\w+)`", names):
        assert re.search(rf"^(def|class) {name}\b", text, re.MULTILINE), f"{path} has no {name}"

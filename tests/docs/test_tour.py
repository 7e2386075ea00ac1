"""The tour through the trainer is that of today's code: no file left out, and names true."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from minimegatron.arguments.flag import table_of
from minimegatron.arguments.table import Config
from tests.docs.pages import ROOT

CODE = ROOT / "code"
TRAINER = CODE / "minimegatron"
PAGE = (ROOT / "docs" / "trainer.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}")[2].partition("\n## ")[0]


STOP = re.compile(r"\[`([\w/]+\.py)`\]\(\.\./code/([\w/]+\.py)\)(?:\s\(([^)]*)\))?")
BEFORE, WALK, REST = (STOP.findall(section(title)) for title in (
    "Before the first step", "One micro-batch", "The rest of the package"))
STOPS = [*BEFORE, *WALK, *REST]
# `FILE`: `NAME`, `NAME`; or `NAME` (`FILE`)
FILE = re.compile(r"`([\w/]+\.py)`: ([^;|]*)")
NAMED = re.compile(r"((?:`[\w.]+`,? ?(?:which calls )?)+)\(`([\w/]+\.py)`\)")
FLAGS = re.findall(r"^\| (`--.*?) \| (`.*?) \|$", section("Where a flag acts"), re.MULTILINE)
WITHOUT_CHOICE = {"optimizer", "DDP_impl", "data_impl", "outer_dp_sharding_strategy",
                  "num_workers"}


@cache
def source(path: str) -> tuple[str, ast.Module]:
    text = (CODE / path).read_text()
    return text, ast.parse(text)


def find(path: str, name: str) -> str:
    """Return the source of a class, function, method, or constant; fails if there is none."""
    text, node = source(path)
    for part in name.split("."):
        found = [each for each in node.body
                 if getattr(each, "name", None) == part
                 or (isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == part)]
        assert found, f"{path} has no {name}"
        node = found[0]
    return ast.get_source_segment(text, node)


def names_in(text: str) -> list[str]:
    return re.findall(r"`([A-Za-z_][\w.]*)`", text)


def test_no_file_is_left_out_and_none_comes_twice():
    files = sorted(str(path.relative_to(CODE)) for path in TRAINER.rglob("*.py")
                   if path.name != "__init__.py")
    assert sorted(path for _, path, _ in STOPS if path.startswith("minimegatron/")) == files


def test_a_micro_batch_passes_through_as_many_files_as_the_page_says():
    said = re.search(r"passes through (\d+) files", section("One micro-batch"))
    assert len(WALK) == int(said[1]) <= 15


@pytest.mark.parametrize(("shown", "path", "names"), STOPS, ids=[one[1] for one in STOPS])
def test_a_stop_is_as_it_says(shown, path, names):
    assert shown == path.removeprefix("minimegatron/") and (CODE / path).exists()
    for name in names_in(names):
        find(path, name)


def test_gradients_are_reduced_where_the_page_says():
    places = NAMED.findall(section("Where gradients are reduced"))
    assert len(places) >= 12
    for names, path in places:
        for name in names_in(names):
            find(f"minimegatron/{path}", name)


def test_every_flag_has_a_place_where_it_acts():
    shown = [flag for flags, _ in FLAGS for flag in re.findall(r"`(--[\w-]+)`", flags)]
    flags = {name: flag for name, flag in table_of(Config).items() if not flag.derived}
    assert len(shown) == len(set(shown))
    spellings = {spelling: name for name, flag in flags.items() for spelling in flag.spellings}
    assert {spellings[flag] for flag in shown} == flags.keys() - WITHOUT_CHOICE
    for name in WITHOUT_CHOICE:
        assert f"`{flags[name].spelling}`" in section("Where a flag acts")


@pytest.mark.parametrize(("shown", "places"), FLAGS, ids=[flags for flags, _ in FLAGS])
def test_a_flag_acts_where_the_page_says(shown, places):
    spellings = {spelling: name for name, flag in table_of(Config).items()
                 for spelling in flag.spellings}
    text = "".join(find(f"minimegatron/{path}", name) for path, names in FILE.findall(places)
                   for name in names_in(names.partition(" (")[0]))
    for flag in re.findall(r"`(--[\w-]+)`", shown):
        assert re.search(rf"\b{spellings[flag]}\b", text), flag

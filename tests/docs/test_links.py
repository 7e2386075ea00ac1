"""Every relative link, picture and anchor of README and the guides leads somewhere."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.pages import ROOT, pages

MOST_BYTES = 150_000  # of a picture


def inline(text: str):
    """Every token within a line."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield from token.children or []


def targets(text: str) -> list[str]:
    """Return the targets of links and pictures within the repository."""
    results = [str(token.attrGet("href") or token.attrGet("src")) for token in inline(text)
               if token.type in ("link_open", "image")]
    return [target for target in results if not re.match(r"[a-z]+:", target)]


@cache
def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as GitHub and MkDocs spell them."""
    found: set[str] = set()
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    for heading, title in pairwise(tokens):
        if heading.type == "heading_open":
            words = "".join(child.content for child in title.children)
            found.add(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return found


def problem(page: Path, target: str) -> str | None:
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    if not there.exists():
        return f"{target}: there is no {there}"
    if not there.is_relative_to(ROOT):
        return f"{target}: is outside of the checkout"
    if anchor and there.suffix == ".md" and anchor not in anchors(there):
        return f"{target}: {there.name} has {', '.join(sorted(anchors(there)))}"
    return None


@pytest.mark.parametrize("page", [*pages(), ROOT / "CHANGELOG.md"],
                         ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    results = [problem(page, target) for target in targets(page.read_text())]
    assert not [one for one in results if one]


@pytest.mark.parametrize(("target", "said"), [
    ("none.md", "there is no"), ("setup.md#nowhere", "setup.md has "), ("#nowhere", "has "),
    ("../../secret", "there is no"), ("../..", "outside of the checkout")])
def test_a_broken_link_is_seen(target, said):
    page = ROOT / "docs" / "students.md"
    assert targets(f"[x]({target}) <https://a.example> ![y]({target})") == [target, target]
    assert said in problem(page, target)


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            waiting += [(page.parent / target.partition("#")[0]).resolve()
                        for target in targets(page.read_text()) if target[0] != "#"]
    assert set(pages()) <= seen


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").glob("**/*.png")),
                         ids=lambda path: path.name)
def test_pictures_are_small_and_shown_somewhere(picture):
    assert picture.stat().st_size <= MOST_BYTES
    assert any(picture.name in page.read_text() for page in pages())

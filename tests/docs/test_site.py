"""The site as it is built: nothing secret, nothing from elsewhere, readable from the disk."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from copy import copy
from functools import cache
from pathlib import Path, PurePosixPath

import pytest
from bs4 import BeautifulSoup
from markdown_it import MarkdownIt
from markupsafe import Markup

from docs_site import LABS, PAGES, ROOT, labs, matching

pytestmark = pytest.mark.slow
TEXTS = matching(*PAGES, "docs/**/*.md")
# They explain markers and checks by examples, which labs use as well.
GUIDES = ("docs/writing-labs", "docs/first-lab")
MARKERS = ("BEGIN SOLUTION", "BEGIN HIDDEN", "END SOLUTION", "END HIDDEN")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    environment = {name: value for name, value in os.environ.items() if name != "REPO_URL"}
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-d", folder],
                          cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def html_of(path: str) -> PurePosixPath:
    """Return the site's path of a repository file's page."""
    made = PurePosixPath(path).with_suffix(".html")
    return made.with_name("index.html") if made.name == "README.html" else made


@cache
def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


def squeezed(text: str) -> str:
    return " ".join(text.split())


def sources(notebook: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in json.loads(notebook)["cells"])


def secrets() -> set[str]:
    """Lines of answers and hidden tests that students do not have anyhow."""
    released = squeezed("\n".join(sources((ROOT / path).read_text()) for path in matching(LABS)))
    collected = set()
    for path in ROOT.glob("solutions/*.py"):
        blocks = re.findall(r"### BEGIN (?:SOLUTION|HIDDEN TESTS)\n(.*?)### END", path.read_text(),
                            re.DOTALL)
        collected |= {squeezed(line) for block in blocks for line in block.splitlines()}
    return {line for line in collected if len(line) >= 15 and line not in released}


def texts_of(site: Path) -> dict[str, str]:
    """All that can be read on the site, by where it stands."""
    collected = {}
    for path in site.rglob("*"):
        name = path.relative_to(site).as_posix()
        if path.suffix == ".html":
            collected[name] = soup(path).get_text()
        elif path.suffix == ".ipynb":
            collected[name] = sources(path.read_text())
        elif name == "search/search_index.json":
            for entry in json.loads(path.read_text())["docs"]:
                text = Markup(entry["text"]).striptags()
                collected[f"{entry['location']} in the search"] = text
    return collected


def test_no_answer_and_no_hidden_test_is_on_the_site(site):
    wanted, texts = [*secrets(), *MARKERS], texts_of(site)
    assert len(wanted) > 500 and len(texts) > 200
    for name, text in texts.items():
        text = squeezed(text)
        seen = [line for line in wanted if line in text]
        assert not seen or name.startswith(GUIDES), (name, seen)


def test_the_page_of_a_lab_shows_outputs_but_leads_to_no_worked_notebook(site):
    for path in matching(LABS):
        made = soup(site / html_of(path))
        worked = json.loads((ROOT / "notebooks" / "worked" / Path(path).name).read_text())
        has_outputs = any(cell.get("outputs") for cell in worked["cells"])
        assert bool(made(class_="output")) == has_outputs
        assert ("The outputs are from a run on" in made.get_text()) == has_outputs
        assert not [link["href"] for link in made("a", href=True) if "worked" in link["href"]]
        assert "Stuck?" not in made.get_text() and made("details") and made("pre")
        released = (site / "notebooks" / "download" / Path(path).name).read_text()
        assert not any(cell.get("outputs") for cell in json.loads(released)["cells"])


def test_every_formula_of_the_labs_is_mathml(site):
    assert "$$" in "".join(sources((ROOT / path).read_text()) for path in matching(LABS))
    for path in matching(LABS):
        text = (ROOT / path).read_text()
        made = soup(site / html_of(path))
        assert len(made("math", display="block")) == text.count("$$") / 2
        assert not made(class_="arithmatex")


LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src",
          "audio": "src", "embed": "src", "object": "data", "image": "href", "use": "href"}
FOR_READERS = {"canonical", "next", "prev", "alternate"}
FOREIGN = re.compile(r"^\s*(https?:)?//")


def loads(made: BeautifulSoup):
    """Addresses that a browser fetches by itself."""
    for tag, attribute in LOADED.items():
        yield from (found[attribute] for found in made(tag) if found.get(attribute))
    for link in made("link"):
        if not FOR_READERS & set(link.get("rel", ())):
            yield link["href"]
    for style in [*made("style"), *made(style=True)]:
        yield from re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)",
                              style.get_text() + str(style.get("style", "")))


def test_nothing_is_loaded_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    for path in pages:
        assert not [address for address in loads(soup(path)) if FOREIGN.match(address)], path
    for path in [*site.rglob("*.css"), *site.glob("images/*.svg")]:
        fetched = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]+)", path.read_text())
        assert not [address for address in fetched if FOREIGN.match(address)], path
    assert len(pages) > 25


SHAPES = ["h1", "h2", "h3", "h4", "ul", "ol", "li", "pre", "table", "tr", "td", "blockquote", "em"]


def shape(made: BeautifulSoup) -> Counter:
    return Counter(element.name for element in made(SHAPES))


@pytest.mark.parametrize("path", TEXTS)
def test_a_page_has_the_lists_and_tables_that_the_repositorys_view_shows(path, site):
    common = MarkdownIt("commonmark").enable("table").render((ROOT / path).read_text())
    made = soup(site / html_of(path)).find("article")
    assert shape(made) == shape(BeautifulSoup(common, "html.parser"))


@pytest.mark.parametrize("path", matching(LABS))
def test_a_lab_has_the_lists_and_tables_that_jupyterlab_shows(path, site):
    cells = [cell for cell in json.loads((ROOT / path).read_text())["cells"] if "".join(
        cell["source"]).strip()]
    common = Counter()
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = MarkdownIt("commonmark").enable("table").render(labs.STUCK.sub("", text))
            common += shape(BeautifulSoup(text, "html.parser"))
        else:
            common["pre"] += 1
    article = copy(soup(site / html_of(path)).find("article"))
    for output in article(class_="output"):
        output.extract()
    assert shape(article) == common


# With long flags, wide tables, long lines of code; all pages would take a quarter of a minute.
WIDE = ("README.md", "docs/instructors.md", "docs/trainer.md", "docs/virtual-gpus.md",
        "notebooks/03_multi_node.ipynb", "notebooks/07_the_bill.ipynb")


@pytest.mark.browser
def test_from_the_disk_a_phone_shows_the_labs_and_finds_a_word(site, page, traffic):
    page.set_viewport_size({"width": 380, "height": 800})
    for path in WIDE:
        page.goto((site / html_of(path)).as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path
    page.locator("label[for=__search]").first.click()
    page.keyboard.type("micro-batch")
    page.locator(".md-search-result__item").first.wait_for()
    assert not [address for address in traffic.outside if not address.startswith(site.as_uri())]
    missing = [one for one in traffic.failed if "ERR_ABORTED" not in one]  # left for the next page
    assert not missing and not traffic.errors

"""The parts that the site is made of: labs as Markdown, formulas, links, the navigation."""

import base64
import json
import re
import xml.etree.ElementTree as xml
from types import SimpleNamespace

import pytest
from markdown import Markdown
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

import site_hooks
from docs_site import LABS, PAGES, ROOT, flags, formulas, labs, links, matching, outputs

PATH = "notebooks/07_new.ipynb"


def cell(source, kind="code", **grading):
    metadata = {"nbgrader": grading} if grading else {}
    return {"cell_type": kind, "metadata": metadata, "source": source.splitlines(True)}


def page(*cells):
    first = cell("# New: a lab\n\nWhat it is about.", "markdown")
    return labs.to_markdown(json.dumps({"cells": [first, *cells]}), PATH)


def test_a_lab_says_how_to_open_it_below_its_title():
    lines = page().splitlines()
    assert lines[0] == "# New: a lab"
    assert PATH in "".join(lines[1:5]) and lines[-1] == "What it is about."


def test_answers_and_checks_are_boxes_that_say_so():
    made = page(cell("raise NotImplementedError\n\n# here", solution=True),
                cell("check.value(x, 3)", grade=True, points=2),
                cell("check.value(y, 3)", grade=True, points=1))
    assert '!!! question "Your turn"\n    ```ipython3\n    raise NotImplementedError\n\n' in made
    assert '"Check (2 points)"' in made and '"Check (1 point)"' in made


def test_the_line_that_leads_to_the_worked_notebook_is_left_out():
    made = page(cell("### Exercise 1\n\nDo *it*.\n\n*Stuck? [The worked notebook]"
                     "(worked/07_new.ipynb#cell-id=do) shows one way.*", "markdown"))
    assert made.endswith("Do *it*.\n")


def test_code_with_a_fence_in_it_stays_whole():
    assert "````ipython3\nprint('''\n```\n''')\n````" in page(cell("print('''\n```\n''')"))


def test_a_shell_script_is_colored_as_one():
    assert "```bash\n%%writefile code/mine.sh" in page(cell("%%writefile code/mine.sh\nsrun x"))


RELEASED = [
    ("setup", "import os", {"tags": ["setup"]}), ("look", "print(os.name)", {"tags": ["explore"]}),
    ("split", 'raise NotImplementedError("Your turn: define split here")',
     {"nbgrader": {"solution": True}}),
    ("split-check", 'check("split")', {"nbgrader": {"grade": True, "points": 2}}),
    ("first", "!sbatch code/x.sh", {"tags": ["explore"]}),
    ("use", "half = split(8)", {"tags": ["explore"]}),
    ("later", "print(half)", {"tags": ["explore"]}),
    ("run", "!sbatch code/x.sh {half} --timeline runs/mine", {"tags": ["explore"]}),
    ("draw", "draw('runs/mine')", {"tags": ["explore"]}),
    ("again", "!sbatch code/x.sh", {"tags": ["explore"]}),
    ("after", "print(len('x'))", {"tags": ["explore"]}),
    ("show", "print(getsource(f))", {"tags": ["explore"]})]
ANSWER = "def split(layers):\n    return layers // 2, layers - layers // 2"
PRINTED = {"look": "posix", "split-check": "passed", "use": "(4, 4)",
           "later": "\x1b[1m4\x1b[0m < 5", "after": "1", "show": ANSWER, "draw": "F0 B0",
           **dict.fromkeys(("first", "run", "again"), "Submitted batch job 2")}


# The headers of PNG images of 800 and of 1600 pixels per line.
NARROW, WIDE = (base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4)
                                 + b"\0\0\1\0").decode() for width in (800, 1600))


@pytest.fixture
def read_outputs(tmp_path):
    """The outputs of a lab whose worked notebook printed PRINTED."""
    released = [{"id": name, "cell_type": "code", "source": source, "metadata": marks}
                for name, source, marks in RELEASED]
    released.insert(0, {"id": "title", "cell_type": "markdown", "source": "# New", "metadata": {}})
    worked = [{**one, "source": {"split": ANSWER, "title": "# New\n\n*From a run.*"}.get(
        one["id"], one["source"])} for one in released]
    for one in worked:
        one["outputs"] = [{"output_type": "stream", "text": PRINTED[one["id"]]}
                          ] if one["id"] in PRINTED else []
    (tmp_path / "notebooks" / "worked").mkdir(parents=True)
    (tmp_path / "notebooks" / "worked" / "07_new.ipynb").write_text(json.dumps({"cells": worked}))
    return outputs.read(tmp_path, PATH, released)


def test_outputs_of_experiments_are_shown_and_those_of_answers_are_not(read_outputs):
    shown, label = read_outputs
    assert set(shown) == set(PRINTED) - {"split-check", "show"} and label == "From a run."
    assert "<pre>posix</pre>" in shown["look"]


def test_outputs_that_use_an_answer_are_folded(read_outputs):
    shown, _ = read_outputs
    folded = {name for name, made in shown.items() if made.startswith("<details")}
    assert folded == {"use", "later", "draw"}
    assert '<span class="ansi-bold">4</span> &lt; 5' in shown["later"]


def test_without_worked_notebooks_there_are_no_outputs(tmp_path):
    assert outputs.read(tmp_path, PATH, []) == ({}, "")


def test_a_picture_has_its_alternative_text():
    made = outputs.to_html({"data": {"image/png": NARROW + "\n", "text/plain": "x"},
                            "metadata": {"image/png": {"alt": 'a "b"'}}})
    assert f'<img alt="a &quot;b&quot;" src="data:image/png;base64,{NARROW}">' in made
    assert 'class="picture"' in made
    made = outputs.to_html({"data": {"image/svg+xml": ["<svg/>"], "text/plain": "x"},
                            "metadata": {"image/svg+xml": {"alt": 'a "b"'}}})
    assert '<img alt="a &quot;b&quot;" src="data:image/svg+xml;base64,PHN2Zy8+">' in made
    made = outputs.to_html({"data": {"image/png": WIDE}, "metadata": {}})
    assert 'class="picture wide"' in made


@pytest.mark.parametrize("tex", [
    r"\text{seconds} = \text{latency} + \frac{\text{bytes}}{\text{bandwidth}}",
    r"\frac{p - 1}{m + p - 1}", r"\sum_{i=1}^{n} x_i \cdot \sqrt{2}", r"\lceil m / p \rceil \le 4"])
def test_a_formula_becomes_mathml(tex):
    made = formulas.replace_in(f'<p>So <span class="arithmatex">\\({tex}\\)</span>.</p>')
    assert xml.fromstring(made).find("{http://www.w3.org/1998/Math/MathML}math") is not None


@pytest.mark.parametrize("tex", [r"\nonsense{x}", r"\frac{a}", r"\left( x", "x^{"])
def test_a_formula_that_is_not_understood_is_an_error_that_names_it(tex):
    with pytest.raises(ValueError, match="formula") as error:
        formulas.to_mathml(tex)
    assert repr(tex) in str(error.value)


def test_a_flag_stays_in_one_piece_in_a_line_and_blocks_are_left_alone():
    made = flags.kept_whole("<p><code>lab up --gpus a100:4 -q</code> a-b</p>")
    assert made == ('<p><code>lab up <span class="flag">--gpus</span> a100:4 '
                    '<span class="flag">-q</span></code> a-b</p>')
    block = "<pre><span></span><code>lab up --gpus</code></pre>"
    assert flags.kept_whole(block) == block


def test_a_formula_that_fails_ends_the_build_and_names_the_page():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/data.md"))
    with pytest.raises(PluginError, match=r"docs/data\.md: formula '.*nonsense"):
        site_hooks.on_page_content(r'<span class="arithmatex">\(\nonsense\)</span>', page, {}, [])


def rendered(text, repository=""):
    here = links.SourceLinks(repository)
    here.page, here.pages = "docs/site.md", {"docs/site.md", "docs/trainer.md"}
    return Markdown(extensions=[here]).convert(text)


def test_a_link_to_a_source_file_leads_to_the_repository_or_is_text():
    text = "[the license](../LICENSE)"
    assert rendered(text) == "<p><span>the license</span></p>"
    assert 'href="https://host/o/n/blob/HEAD/LICENSE"' in rendered(text, "https://host/o/n/")


@pytest.mark.parametrize("address", ["trainer.md", "trainer.md#x", "#here", "https://host/LICENSE",
                                     "no_such_file.md", "../../elsewhere"])
def test_every_other_link_is_left_to_mkdocs(address):
    assert f'href="{address}"' in rendered(f"[text]({address})", "https://host/o/n")


def leaves(nav):
    for entry in nav:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from leaves(value) if isinstance(value, list) else [value]


def test_the_navigation_has_every_page_and_no_other():
    config = load_config(str(ROOT / "mkdocs.yml"))
    named = list(leaves(site_hooks.on_config(config).nav))
    there = matching(*PAGES, "docs/**/*.md", LABS)
    assert not set(there) - set(named), "not in nav of mkdocs.yml"
    assert not set(named) - set(there), "in nav of mkdocs.yml only"
    assert len(named) == len(there)


def test_boxes_have_the_figures_colors():
    light = (ROOT / "tools/docs_site/site.css").read_text().partition("}")[0]
    colors = set(re.findall("#[0-9a-f]{6}", light))
    assert len(colors) == 4
    assert colors <= set(re.findall("#[0-9a-f]{6}", (ROOT / "images/src/style.py").read_text()))


def test_labs_are_named_by_number_and_title():
    assert labs.title_of(ROOT / "notebooks/03_multi_node.ipynb") == "03 Multi-node training"

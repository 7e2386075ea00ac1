"""The trainer stays small enough to read: the whole package, and the files of its page's tour."""

from __future__ import annotations

import ast
import re

import pytest

from labcore.workspace import CODE

PAGE = (CODE.parent / "docs" / "trainer.md").read_text()
TOUR = PAGE[PAGE.index("## Before the first step"):PAGE.index("\n## Where gradients are")]
LINK = re.compile(r"\(\.\./code/([\w/]+\.py)\)")
CORE = dict.fromkeys(["pretrain_gpt.py", *LINK.findall(TOUR)])
FILES = sorted((CODE / "minimegatron").rglob("*.py"))
# A new feature makes room for itself in the core, whose limit should only ever go down. The
# package's went up for sharded gradients and parameters, for checkpoints that load in another
# layout and are saved while training goes on, for optimizer state that every replica saves, for
# offloaded optimizer state and activations, also on CUDA devices, for tokenizers in Hugging Face's
# format, and for generated text, whose three files no training run imports.
LIMITS = {"The package has": 13_050, "The core has": 3_000}
FILE_LIMIT, FUNCTION_LIMIT = 500, 50
FEWEST = 60
SMALL = {  # why a file has fewer lines than that
    "errors.py": "the command line imports it before torch",
    "exits.py": "a step does without it",
    "model/qk_layernorm.py": "only --qk-layernorm imports it",
    "main.py": "the program, which every other file is imported by",
}


def name_of(path) -> str:
    return str(path.relative_to(CODE / "minimegatron"))


def lines(names) -> int:
    """Return the lines of files, with docstrings and comments."""
    return sum(len((CODE / name).read_text().splitlines()) for name in names)


def test_the_trainer_is_as_small_as_its_page_says(capsys):
    package = [path.relative_to(CODE) for path in FILES]
    figures = dict(zip(LIMITS, map(lines, (package, CORE)), strict=True))
    with capsys.disabled():
        print("", *(f"{name} {count:,} lines" for name, count in figures.items()), sep="\n")
    for name, count in figures.items():
        assert count <= LIMITS[name], f"{name} {count:,} lines"
        shown = re.search(rf"{name} about ([\d,]+) lines", PAGE)
        assert shown and abs(int(shown[1].replace(",", "")) - count) <= 100, \
            f"docs/trainer.md: {name} {count:,} lines"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_one_idea_and_a_function_fits_on_a_screen(path):
    text = path.read_text()
    count = len(text.splitlines())
    assert count <= FILE_LIMIT
    assert count >= FEWEST or path.name == "__init__.py" or name_of(path) in SMALL
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    assert not [node.name for node in functions
                if node.end_lineno - node.lineno + 1 > FUNCTION_LIMIT]

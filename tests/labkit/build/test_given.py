"""A script check's expectation is resolved from the reference and written into the check."""

import ast
import json
import textwrap

import pytest

from labcore.errors import LabError
from labkit.build import given, read
from labkit.build.cli import build
from labkit.build.lab import Role
from tests.labkit.build.conftest import line_of
from tests.labkit.build.test_rules import SCRIPT

START = "    pretrain_gpt.py $MODEL --micro-batch-size 4"
HEADING = "# ## Exercise 2: a script"


def check_of(path):
    """The script's check in a lab that is built."""
    return next(cell.source for cell in read(path).of(Role.CHECK) if "check.script" in cell.source)


def kept(source):
    """Return the value of `given=` in a cell."""
    (call,) = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)
               and ast.unparse(node.func) == "check.script"]
    return next(ast.literal_eval(word.value) for word in call.keywords if word.arg == "given")


def test_the_checks_and_the_source_have_what_the_check_compares_with(author, root):
    path = author()
    build(root)
    told = kept(check_of(path))
    assert told == {"nodes": 2, "runs": [{"nodes": 2, "trainer": "pretrain_gpt.py", "flags": (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--max-position-embeddings 64 --train-iters 5 --lr 0.0001 --data-path d --vocab-file v "
        "--merge-file m")}]}
    for file in ("notebooks/checks/90_sample.json", "grader/source/90_sample/90_sample.ipynb"):
        cells = json.loads((root / file).read_text())["cells"]
        lines = [[line.rstrip("\n") for line in cell["source"]] for cell in cells]
        (source,) = [text for text in map("\n".join, lines) if "check.script" in text]
        assert kept(source) == told and max(map(len, source.splitlines())) <= 100
    assert build(root, write=False) == []


def test_a_changed_script_makes_the_notebooks_stale(author, root):
    author()
    build(root)
    author(("--num-layers 2", "--num-layers 4"))
    assert "notebooks/checks/90_sample.json" in build(root, write=False)
    author((START, START.replace("4", "2")))  # the student's to choose
    assert "notebooks/checks/90_sample.json" not in build(root, write=False)


@pytest.mark.parametrize("written", [
    'job = check.script("code/mine.sh", only=["--nproc_per_node", "--micro-batch-size"],)',
    'job = check.script(\n    "code/mine.sh",\n    only=(\n        "--nproc_per_node",  # ü)\n'
    '        "--micro-batch-size"),  # all\n    # of them\n)',
    'if True:\n    "ü"; job = [check.script(path="code/mine.sh", '
    'only=["--nproc_per_node", "--micro-batch-size"]), 3][0]'])
def test_however_the_call_is_written_it_is_filled_in(author, written):
    source = check_of(author((SCRIPT, written)))
    assert kept(source)["nodes"] == 2
    assert source.replace(" ", "").startswith(written[:20].replace(" ", ""))


def test_given_none_compares_nothing(author):
    assert "given=None)" in check_of(author((SCRIPT, 'job = check.script("code/mine.sh", '
                                                     'given=None)')))


REFUSED = [
    (SCRIPT, 'job = check.script("code/mine.sh", only=["--micro-batch-sizes"])',
     "check.script: --micro-batch-sizes is not a flag of the trainer (nearest: "
     "--micro-batch-size)"),
    (SCRIPT, 'job = check.script("code/mine.sh", only=["--log-interval"])',
     "--log-interval is never compared"),
    (SCRIPT, 'names = ["--lr"]\njob = check.script("code/mine.sh", only=names)',
     'write only= out, as in only=["--micro-batch-size"]'),
    (SCRIPT, 'job = check.script("code/mine.sh", given={"runs": [{"flags": ""}]})',
     "`lab build` writes given= from the reference: leave it out"),
    (SCRIPT, 'job = check.script("code/mine.sh")', "given= would show students "
     "--nproc_per_node 2 and --micro-batch-size 4"),
    (SCRIPT, 'job = check.script("code/mine.sh", only=["--micro-batch-size"])',
     "given= would show students --nproc_per_node 2,"),
    (START, f"{START} --fp16", "given= would show students --fp16"),
    (START, f"{START} --seed $(date +%N | cut -c 1-8)", "does not start the same job when it "
     "runs again: --seed "),
    (START, f"{START} --num-layer 3", "the reference script would fail: "),
    (START, "    other.py", "it does not start the trainer"),
    ("# %% tags=[\"check-setup\"]\nfrom labkit import check", "# %% tags=[\"check-setup\"]\n"
     "from labkit import check\ndef resolved():\n    return check.script('code/mine.sh')",
     "check.script belongs in the check cell")]


@pytest.mark.parametrize(("old", "new", "says"), REFUSED, ids=[says[:40] for *_, says in REFUSED])
def test_what_cannot_be_compared_is_refused(author, old, new, says):
    path = author((old, new))
    with pytest.raises(LabError) as caught:
        read(path)
    at = "check.script(" if "def resolved" not in new else "return check.script("
    assert says in str(caught.value) and f":{line_of(path, at)}: " in str(caught.value)


@pytest.mark.parametrize("text", ["Take micro-batches of 4, on **2** GPUs.",
                                  "2 ranks, and `--micro-batch-size 4`"])
def test_what_the_exercise_says_need_not_be_in_only(author, text):
    path = author((SCRIPT, 'job = check.script("code/mine.sh")'),
                  (HEADING, f"{HEADING}\n#\n# {text}"))
    assert kept(check_of(path))["runs"][0]["ranks_per_node"] == 2


def test_a_number_within_another_says_nothing():
    for text in ("GPT-2", "12", "2.5", "-2", "0.2", "v2", "2-2"):
        assert not given._names("2", f"it is {text} here")
    for text in ("2.", "2,", "(2)", "**2**", "`2`", "2 x 2"):
        assert given._names("2", f"it is {text} here")


def test_several_trainings_are_kept_one_by_one():
    two = {"nodes": 1, "programs": ["a.py"], "runs": [
        {"trainer": "t", "flags": "--lr 1"},
        {"trainer": "t", "settings": {"A": "ü"}, "flags": ""}]}
    assert literal(two) == two


def test_components_are_kept_on_lines_of_their_own():
    node = {"nodes": 1, "gpus_per_node": 2, "gpu": "a100"}
    mixed = {"components": [node, {**node, "gpu": "a10"}, {}], "programs": ["a.py"], "runs": [
        {"nodes": 2, "components": [[0, 2], [1, 2]], "trainer": "t", "flags": "--lr 1"}]}
    assert literal(mixed) == mixed
    assert set(given._pairs(mixed)) == {
        ("--nodes", "1"), ("--gpus-per-node", "2"), ("--gpus-per-node", "a100"),
        ("--gpus-per-node", "a10"), ("--lr", "1")}


def literal(kept):
    """Return the value that a notebook's text of given= denotes."""
    text = given._literal(kept)
    assert max(map(len, text.splitlines())) <= 100
    return ast.literal_eval(textwrap.dedent(text).removeprefix("given="))

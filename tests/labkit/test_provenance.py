"""What a check relies on and grading will not have is named; what grading has is not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from labcore.workspace import CHECKOUT
from labkit.cells import Code, Release, Role, read_release
from labkit.provenance import Provenance, RunCell

LABS = sorted((CHECKOUT / "notebooks").glob("*.ipynb"))


def cell(source, name="", tags=(), **marks):
    metadata = {"tags": list(tags)} if tags else {}
    if marks:
        metadata["nbgrader"] = {"grade_id": name, **marks}
    return {"cell_type": "code", "id": name or f"{tags[0]}-1", "metadata": metadata,
            "source": source}


CELLS = {
    "setup": cell("import math\nROWS = 4", "setup", ["setup"]),
    "explore": cell("from lablib import plots\nspeed = 3", "explore", ["explore"]),
    "check-setup": cell("from labkit import check\nLIMIT = 3", "check-setup", ["check-setup"]),
    "batch": cell('def batch(ranks):\n    raise NotImplementedError("Your turn: ...")', "batch",
                  solution=True),
    "driver": cell("def driven(ranks):\n    return batch(ranks) * ROWS", "driver", ["driver"]),
    "check": cell("check.function(driven, [(2,)], [8])", "check", grade=True),
    "file": cell('%%writefile mytrainer/mine.py\nraise NotImplementedError("Your turn")', "file",
                 solution=True),
    "file-driver": cell("def loaded():\n    from mytrainer import mine\n    return mine.x",
                        "file-driver", ["driver"]),
    "file-check": cell("check.function(loaded, [()], [1])", "file-check", grade=True),
    "stand-in-driver": cell("def built():\n    from lablib import llama_parts\n"
                            "    llama_parts.install()\n    from mytrainer import mine\n"
                            "    return mine.x", "stand-in-driver", ["driver"]),
    "stand-in-check": cell("check.function(built, [()], [1])", "stand-in-check", grade=True),
    "late": cell('raise NotImplementedError("Your turn: define late here")', "late",
                 solution=True),
}
ANSWER = "def batch(ranks):\n    return ranks"
FILE = "%%writefile mytrainer/mine.py\nx = 1"


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> Release:
    path = tmp_path_factory.mktemp("release") / "90_small.ipynb"
    path.write_text(json.dumps({"cells": list(CELLS.values())}))
    return read_release(path)


def ran(*cells: str | tuple[str, str], ids: bool = True) -> list[RunCell]:
    """Cells that ran: the id of a released one, a pair of its id and another source, or a source
    of the student's own."""
    runs = []
    for given in cells:
        name, source = given if isinstance(given, tuple) else (
            (given, CELLS[given]["source"]) if given in CELLS else ("5f0e-uuid", given))
        runs.append(RunCell(Code(source), name if ids else ""))
    return runs


RIGHT = ("setup", "explore", "check-setup", ("batch", ANSWER), "driver")


def problems(release, *cells, check="check", home=None, ids=True):
    return Provenance(release, ran(*cells, ids=ids), home).problems(release.by_id[check])


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("more", [
    (), ("import math",), ("mine = 3\nmine.x = 3\nprint(batch(2))",),
    ("import numpy\nnumpy.random.seed = 3",), ("%%bash\nls",), ("driver", ("batch", ANSWER)),
    (("batch", f"import os\n{ANSWER}"),), ("speed.x = 3",)])
def test_what_grading_has_is_not_named(release, ids, more):
    assert problems(release, *RIGHT, *more, ids=ids) == []


@pytest.mark.parametrize(("cells", "said"), [
    (["def helper(x):\n    return x", ("batch", "def batch(ranks):\n    return helper(ranks)")],
     "`helper` is defined in a cell of your own; grading will not have it: move it into your"),
    (["import numpy as np", ("batch", "def batch(ranks):\n    return np.sum([ranks])")],
     "`np` is imported in a cell of your own"),
    (["def one(x):\n    return two(x)\ndef two(x):\n    return x",
      ("batch", "def batch(ranks):\n    return one(ranks)")], "`one` is defined in a cell of your"),
    (["k = 1", ("batch", "class A:\n    def f(self):\n        return k\ndef batch(ranks):\n"
                "    return A().f()")], "`k` is defined in a cell of your own"),
    ([("batch", "def batch(ranks):\n    return plots.x(ranks)")],
     "`plots` is imported in a cell that grading does not run"),
    ([("batch", "def batch(ranks):\n    return LIMIT * ranks")],
     "`LIMIT` is defined in a cell that only checks can use"),
    ([("explore", "def helper(x):\n    return x"),
      ("batch", "def batch(ranks):\n    return helper(ranks)")],
     "`helper` is defined in a cell of your own"),
    (["def batch(ranks):\n    return 2 * ranks"],
     "`batch` is redefined in a cell of your own; grading will use the original"),
    ([("setup", "import math\nROWS = 2")],
     "`ROWS` is redefined in a course cell that you changed"),
    ([("setup", "import math\nfrom itertools import chain\nROWS = 4"),
      ("batch", "def batch(ranks):\n    return list(chain([ranks]))")],
     "`chain` is imported in a course cell that you changed; grading will not have it"),
    ([("driver", "def driven(ranks):\n    return 8")],
     "`driven` is redefined in a course cell that you changed"),
    ([("batch", f"import os\n{ANSWER}"),
      ("batch", "def batch(ranks):\n    return os.cpu_count() * ranks")],
     "`os` is imported in an earlier version of an answer cell"),
    ([("late", "def late(x):\n    return x"),
      ("batch", "def batch(ranks):\n    return late(ranks)")],
     "`late` is defined below this check"),
    ([("batch", "def batch(ranks):\n    return math.floor(ranks)"), "math.floor = round"],
     "`math.floor` in a cell of your own changes `math`"),
    ([("batch", "import torch.nn as nn\ndef batch(ranks):\n    return nn.functional.relu(ranks)"),
      "import torch.nn.functional as F\nsetattr(F, 'relu', abs)"],
     "`setattr(F, 'relu', abs)` in a cell of your own changes `F`"),
    ([("batch", "import os\ndef batch(ranks):\n    return os.environ['R']"),
      "import os\nos.environ['R'] = '2'"], "`os.environ['R']` in a cell of your own changes `os`"),
], ids=lambda value: value[:30] if isinstance(value, str) else "")
def test_what_grading_will_not_have_is_named(release, cells, said):
    (problem,) = problems(release, *RIGHT, *cells)
    assert problem.startswith(said)


def test_without_cell_ids_sources_and_names_tell_which_cell_it_is(release):
    found = problems(release, "setup", "def helper(x):\n    return x",
                     "def batch(ranks):\n    return helper(ranks)", "driver", ids=False)
    assert [problem.split()[0] for problem in found] == ["`helper`"]
    assert problems(release, "setup", "def late(x):\n    return x", "driver", ids=False,
                    check="file-check") == []


def test_names_that_only_the_kernel_sees_are_named_too(release):
    star = RunCell(Code("from helpers import *"), "5f0e-uuid", bound=frozenset({"helper"}))
    answer = RunCell(Code("def batch(ranks):\n    return helper(ranks)"), "batch",
                     bound=frozenset({"batch"}))
    (problem,) = Provenance(release, [*ran("setup", "driver"), star, answer]).problems(
        release.by_id["check"])
    assert problem.startswith("`helper` is defined in a cell of your own")


def test_a_half_of_a_split_answer_is_an_answer(release):
    half = RunCell(Code("def helper(x):\n    return x"), "another-uuid", grade_id="batch")
    rest = RunCell(Code("def batch(ranks):\n    return helper(ranks)"), "batch", grade_id="batch")
    assert Provenance(release, [*ran("setup", "driver"), half, rest]).problems(
        release.by_id["check"]) == []


def test_a_cell_of_an_older_version_of_the_lab_is_not_the_student_s_own(release):
    setup = RunCell(Code("ROWS = 4\nCOLUMNS = 3"), "setup-2a1b3c4d")
    edited = Provenance(release, [setup, *ran(("batch", ANSWER), "driver")]).problems(
        release.by_id["check"])
    assert edited[0].startswith("`ROWS` is defined in a course cell that you changed")
    digest = hashlib.sha256(setup.code.source.encode()).hexdigest()[:8]
    original = setup._replace(id=f"setup-{digest}-2")
    assert Provenance(release, [original, *ran(("batch", ANSWER), "driver")]).problems(
        release.by_id["check"]) == []


@pytest.mark.parametrize(("cells", "on_disk", "said"), [
    ((("file", FILE), "file-driver"), {"mytrainer/mine.py": "x = 1\n"}, ""),
    (("file-driver",), {"mytrainer/mine.py": "x = 1\n"}, ""),  # written by another kernel
    ((("file", FILE), "file-driver"), {"mytrainer/mine.py": "x = 2\n"},
     "`mytrainer/mine.py` has changed since its cell wrote it"),
    ((("file", FILE), "%%writefile mytrainer/mine.py\nx = 2", "file-driver"), {},
     "`mytrainer/mine.py` is written in a cell of your own; grading will not run it"),
    ((("file", "%%writefile mytrainer/mine.py\nfrom helpers import x"), "file-driver"),
     {"mytrainer/mine.py": "from helpers import x\n", "helpers.py": "x = 1"},
     "`helpers.py` is a file of your own; grading will not have it"),
    ((("file", "%%writefile mytrainer/mine.py\nfrom mytrainer.other import x"), "file-driver"),
     {"mytrainer/mine.py": "from mytrainer.other import x\n", "mytrainer/other.py": "x = 1"},
     "`mytrainer/other.py` is a file of your own"),
])
def test_files_are_compared_with_the_cells_that_write_them(release, tmp_path, cells, on_disk, said):
    for path, text in on_disk.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    found = problems(release, "setup", *cells, check="file-check", home=tmp_path)
    assert [problem.startswith(said) for problem in found] == ([True] if said else [])


@pytest.mark.parametrize(("module", "check", "is_named"), [
    ("llama", "stand-in-check", False), ("other", "stand-in-check", True),
    ("llama", "file-check", True)])
def test_files_with_a_stand_in_are_not_named(release, tmp_path, module, check, is_named):
    source = f"%%writefile mytrainer/mine.py\nfrom mytrainer import {module}\nx = 1"
    (tmp_path / "mytrainer").mkdir()
    (tmp_path / f"mytrainer/{module}.py").write_text("y = 1\n")
    found = problems(release, "setup", ("file", source), check.replace("check", "driver"),
                     check=check, home=tmp_path)
    assert len(found) == is_named
    assert all(f"`mytrainer/{module}.py` is a file of your own" in one for one in found)


@pytest.mark.parametrize(("use", "is_named"), [
    ("json.update(1)", False), ("json.update = 1", True), ("json.tool.update(1)", True)])
def test_a_function_of_a_module_changes_nothing(release, use, is_named):
    answer = ("batch", "import json\ndef batch(ranks):\n    return json.loads(ranks)")
    assert len(problems(release, *RIGHT, answer, f"import json\n{use}")) == is_named


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_no_reference_solution_relies_on_what_grading_lacks(path: Path, ids: bool):
    release, runs = read_release(path), []
    solved = CHECKOUT / "grader" / "source" / path.stem / path.name
    for cell in json.loads(solved.read_text())["cells"]:
        if cell["cell_type"] != "code":
            continue
        released, source = release.by_id[cell["id"]], "".join(cell["source"])
        if released.role is Role.CHECK:
            assert Provenance(release, runs).problems(released) == []
        else:
            runs.append(RunCell(Code(source), cell["id"] if ids else ""))

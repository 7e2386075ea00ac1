"""Pieces that are missing, broken, or named wrongly: the error names the file and what to do."""

import ast
import re

import pytest

from lab.mytrainer import defaults, pieces
from labcore.errors import LabError
from labcore.workspace import CHECKOUT, CODE
from labkit.build import Role, read
from labkit.build.shortcuts import covered


def test_a_piece_can_import_another(student):
    student.solve("collectives")
    student.write("ddp", "from mytrainer.collectives import all_reduce\nclass DataParallel: ...\n")
    assert pieces.load("ddp").all_reduce is pieces.load("collectives").all_reduce
    assert pieces.describe() == "mytrainer/collectives.py and mytrainer/ddp.py"


def test_a_missing_piece_is_none(student):
    assert pieces.load("ddp") is None
    assert pieces.describe() == "no piece of mytrainer/ (nothing to communicate)"


@pytest.mark.parametrize(("text", "message"), [
    ("def f(:\n", "mytrainer/ddp.py, line 1: SyntaxError: invalid syntax"),
    ("import torch\n\nimport torhc\n", "mytrainer/ddp.py, line 3: ModuleNotFoundError: No module "
     "named 'torhc'"),
    ("class DistributedDataParallel: ...\n", "mytrainer/ddp.py does not define DataParallel; "
     "rename DistributedDataParallel to DataParallel"),
    ("class dataParallel: ...\n", "rename dataParallel to DataParallel"),
    ("x = 1\n", "mytrainer/ddp.py does not define DataParallel"),
    ("", "mytrainer/ddp.py does not define DataParallel")])
def test_a_broken_piece_names_its_line(student, text, message):
    student.write("ddp", text)
    with pytest.raises(pieces.PieceError, match=re.escape(message)):
        pieces.load("ddp")


def test_an_error_in_an_imported_piece_names_that_piece(student):
    student.write("collectives", "1 / 0\n")
    student.write("ddp", "from mytrainer import collectives\n")
    with pytest.raises(pieces.PieceError, match=r"^mytrainer/collectives.py, line 1: ZeroDivision"):
        pieces.load("ddp")


@pytest.mark.parametrize("name", ["DDP", "dpp", "ddp_"])
def test_a_file_with_almost_the_right_name_is_named(student, name):
    student.write(name, "")
    with pytest.raises(pieces.PieceError, match=f"rename mytrainer/{name}.py to ddp.py"):
        pieces.load("ddp")


@pytest.mark.parametrize("name", ["ddp", "ddp.py", "mytrainer/ddp.py"])
def test_a_piece_is_found_by_its_name(name):
    assert pieces.find(name).defines == ("DataParallel",)


@pytest.mark.parametrize(("name", "nearest"), [
    ("ddpp", "ddp"), ("zzz", ", ".join(pieces.PIECES))])
def test_an_unknown_piece_has_a_nearest_name(name, nearest):
    with pytest.raises(LabError, match=f"{name}: no piece of mytrainer/ .*; nearest: {nearest}$"):
        pieces.find(name)


def test_the_course_s_versions_are_masked_where_students_write_them():
    """No sandbox shows the loop, the shares, or the master weights to the exercises about them."""
    written = {}
    for path in sorted((CHECKOUT / "solutions").glob("*.py")):
        lab = read(path)
        for name in re.findall(r"^%%writefile mytrainer/(\S+)\.py$", "\n".join(
                cell.source for cell in lab.of(Role.ANSWER)), re.M):
            written[name] = lab
    for name, default in (("launch", "join_ranks"), ("launch", "own_samples"), ("train", "train"),
                          ("new/train", "train"), ("precision", "MixedPrecision")):
        assert hasattr(defaults, default), default
        assert covered(written[name], f"lab.mytrainer.defaults.{default}"), name
    assert not covered(written["fp8"], "lab.mytrainer.defaults.train")  # covered can be false


def test_the_program_in_the_workspace_solves_no_exercise():
    text = (CODE / "jobs" / "my_trainer.py").read_text()
    defined = {node.name for node in ast.walk(ast.parse(text))
               if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    assert "main" in defined and ".backward(" not in text
    assert not defined & {name for piece in (*pieces.PIECES.values(), *pieces.EXTENDED.values())
                          for name in piece.defines if name != "connect"}

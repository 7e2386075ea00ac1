"""The plan for grading a lab: the released notebook with its hidden tests restored, and the role of
each cell. A batch makes it once.

Our labs state each cell's role in tags and metadata (docs/writing-labs.md). An instructor's own
nbgrader assignment has no tags. There, a code cell that is neither an answer nor a test is setup:
it runs with the student's code, and its imports, functions, classes, and constants also run on the
trusted side, because tests use them and students must not be able to change them.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from grader.course import Course
from grader.sandbox.masks import SandboxMasks
from labcore.errors import LabError
from labkit import lab_checks
from labkit.build import parts
from labkit.build.given import error_in
from labkit.build.masks import masked
from labkit.cells import SERVED, TAGGED, Code, Role, python_of, role_of
from labkit.lab_checks import complete_order, is_shortened
from labkit.names import Names, analyse, changed

HEADING = re.compile(r"^#{2,4} +(.+)$", re.MULTILINE)
WORKSPACE = "workspace"  # below the sandbox's home
MOST_FILES = 100_000_000  # bytes
NO_FILES = (".ipynb", lab_checks.BESIDE)
DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
PURE = frozenset(("abs", "bool", "dict", "enumerate", "float", "int", "len", "list", "max", "min",
                  "range", "round", "set", "sorted", "str", "sum", "tuple", "zip"))
PURE_MODULES = ("math", "np", "numpy")
FILES = re.compile("load|save|from(file|regex)|genfromtxt|memmap|DataSource|seterr")  # NumPy's


@dataclass(frozen=True)
class PlannedCell:
    """A code cell of the lab.

    Attributes:
        index: its position in the skeleton.
        name: its grade_id, or else its first line; for messages.
        source: the released source of an answer cell.
        required: whether it is the course's own cell, so that a failure is not the student's.
        names: the names that `trusted` binds and uses.
    """

    index: int
    role: Role
    name: str
    grade_id: str = ""
    points: float = 0
    source: str = field(default="", repr=False)
    required: bool = False
    trusted: ast.Module | None = field(default=None, compare=False, repr=False)
    names: Names | None = field(default=None, compare=False, repr=False)
    parts: tuple[PlannedPart, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class PlannedPart:
    """One part of a check with partial credit, run as a check of its own."""

    points: float
    title: str
    cell: PlannedCell


@dataclass(frozen=True)
class GradingPlan:
    """A lab that is ready for grading. The skeleton is never changed: `rebuild` copies it."""

    lab: str
    digest: str  # of the lab's source
    skeleton: NotebookNode = field(repr=False)
    cells: tuple[PlannedCell, ...]
    answers: frozenset[str]  # global names that answers and drivers of the source bind or change
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # that lie beside it
    masks: SandboxMasks = field(default=SandboxMasks(()), compare=False)  # what answers may not use

    def of(self, *roles: Role) -> list[PlannedCell]:
        """Return the cells with one of these roles."""
        return [cell for cell in self.cells if cell.role in roles]

    @cached_property
    def points(self) -> Mapping[str, float]:
        """Return the points of every check by grade_id."""
        return {cell.grade_id: cell.points for cell in self.of(Role.CHECK)}


def read(course: Course, lab: str) -> GradingPlan:
    """Return the plan of a lab whose release/ is up to date (assign.release makes it). Raises
    LabError.

    Args:
        course: the course.
        lab: the lab's name.
    """
    source = _notebook(course, "source", lab)
    skeleton = with_hidden_tests(_notebook(course, "release", lab), source)
    return _plan(lab, course.digest_of_lab(lab), skeleton, bound_by_answers(source),
                 student_files(course.notebook("release", lab).parent))


def read_release(path: Path) -> GradingPlan:
    """Return the plan of a lab without its hidden tests: all that students have of it. Raises
    LabError.

    Args:
        path: the notebook that students get.
    """
    release = with_checks(path)
    stubs = (Code(cell.source).stub_names for cell in release.cells
             if cell.cell_type == "code" and role_of(cell.metadata) is Role.ANSWER)
    return _plan(path.stem, "", release, frozenset().union(*stubs), {})


def _plan(lab: str, digest: str, skeleton: NotebookNode, answers: frozenset[str],
          files: Mapping[str, bytes]) -> GradingPlan:
    cells = tuple(planned(index, cell) for index, cell in enumerate(skeleton.cells)
                  if cell.cell_type == "code")
    names = [name for cell in cells if cell.role is Role.CHECK_SETUP and cell.trusted
             for name in masked(cell.trusted)]
    masks = SandboxMasks(names)
    masks.shown  # noqa: B018  a name that is nowhere stops the lab here, not its first submission
    return GradingPlan(lab, digest, skeleton, cells, answers, files, masks)


def _notebook(course: Course, step: str, lab: str) -> NotebookNode:
    path = course.notebook(step, lab)
    if not path.exists():
        raise LabError(f"{path} does not exist: `lab release {lab}` creates it")
    return read_notebook(path)


def read_notebook(path: Path) -> NotebookNode:
    """Return a notebook of the course. Raises LabError."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises many kinds
        raise LabError(f"{path} is not a notebook: {error}") from error


def with_checks(path: Path) -> NotebookNode:
    """Return a released notebook with the cells of its checks in their places. Raises LabError.

    Args:
        path: the notebook that students get, in notebooks/.
    """
    release = read_notebook(path)
    try:
        checks = lab_checks.of_notebook(path)
    except (OSError, ValueError) as error:
        raise LabError(f"cannot read {lab_checks.path_of(path)}: {error}; `lab build` writes it"
                       ) from error
    if checks is None:
        if is_shortened(release.metadata):
            raise LabError(f"{lab_checks.path_of(path)} is missing: `lab build` writes it")
        return release
    originals = {cell.id: nbformat.v4.new_code_cell(
        cell.source, id=cell.id, metadata={"tags": [cell.role]}) for cell in checks.cells}
    return _restored(release, originals, [(cell.id, cell.before) for cell in checks.cells])


def with_course_cells(release: NotebookNode, source: NotebookNode) -> NotebookNode:
    """Return the release with the cells that it shortens or leaves out as they are in the source.

    Args:
        release: the notebook that students get.
        source: the notebook with hidden tests.
    """
    if not is_shortened(source.metadata):
        return deepcopy(release)
    originals, places, following = {}, [], ""
    for cell in reversed(source.cells):
        if cell.cell_type == "code" and role_of(cell.metadata) in SERVED:
            originals[cell.id] = cell
            places.insert(0, (cell.id, following))
        else:
            following = cell.id
    return _restored(release, originals, places)


def _restored(release: NotebookNode, originals: Mapping[str, NotebookNode],
              places: Sequence[tuple[str, str]]) -> NotebookNode:
    """Return a copy of the release with the sources of these cells, in these places.

    Args:
        release: the notebook that students get.
        originals: the cells, by ID.
        places: in order, the ID of each, and that of the next cell that is not among them.
    """
    result = deepcopy(release)
    cells = {cell.get("id", f"cell {number}"): cell for number, cell in enumerate(result.cells)}
    result.cells = []
    for name in complete_order(list(cells), places):
        cell = cells.get(name) or deepcopy(originals[name])
        if name in originals:
            cell.source = originals[name].source
        result.cells.append(cell)
    return result


def student_files(folder: Path) -> dict[str, bytes]:
    """Return the files that students get with the notebook, by path in the sandbox's home
    directory.

    Raises LabError when they are too large.
    """
    files, total = {}, 0
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.name.endswith(NO_FILES) \
                and ".ipynb_checkpoints" not in name.parts:
            total += path.stat().st_size
            if total > MOST_FILES:
                raise LabError(f"{folder} has more than {MOST_FILES / 1e6:.0f} MB of files: every "
                               "sandbox gets a copy, in memory")
            files[f"{WORKSPACE}/{name}"] = path.read_bytes()
    return files


def with_hidden_tests(release: NotebookNode, source: NotebookNode) -> NotebookNode:
    """Return the release with every locked cell's text taken from the source, like OverwriteCells.

    Args:
        release: the notebook that students get.
        source: the notebook with hidden tests.

    Raises LabError when the two do not match.
    """
    from nbgrader import utils  # students do not have it, and need the rest of this module

    originals = {cell.metadata.nbgrader["grade_id"]: cell for cell in source.cells
                 if cell.metadata.get("nbgrader", {}).get("grade_id")}
    result = with_course_cells(release, source)
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        if not utils.is_locked(cell):
            continue
        name = cell.metadata.nbgrader["grade_id"]
        if name not in originals:
            raise LabError(f"the release has a cell {name} that the source does not have: "
                           "run `lab release` again")
        cell.source = originals[name].source
        cell.metadata.nbgrader["checksum"] = utils.compute_checksum(cell)
    return result


def planned(index: int, cell: NotebookNode) -> PlannedCell:
    """Return the plan of one code cell.

    Args:
        index: its position in the notebook.
        cell: the cell.

    Raises LabError when code for the trusted side cannot run there.
    """
    role, name = role_of(cell.metadata), title(cell)
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    points = float(cell.metadata.nbgrader["points"]) if role is Role.CHECK else 0.0
    tagged = bool(TAGGED.keys() & set(cell.metadata.get("tags", [])))
    tree = None
    if role in (Role.CHECK, Role.CHECK_SETUP):
        tree = _python(cell.source, name)
        _require_given(tree, name)
    elif role is Role.SETUP and not tagged:
        tree = definitions(cell.source)
    required = role is Role.CHECK_SETUP or (role is Role.SETUP and tagged)
    plan = PlannedCell(index, role, name, grade_id, points, cell.source, required, tree,
                       analyse(tree) if tree else None)
    return replace(plan, parts=_parts(plan)) if role is Role.CHECK else plan


def _parts(check: PlannedCell) -> tuple[PlannedPart, ...]:
    """Return the parts of a check with partial credit. Raises LabError when they cannot be
    graded."""
    try:
        split = parts.split(check.trusted)
    except parts.UngradableParts as error:
        raise LabError(f"the check {check.name}, line {error.line}: {error}") from error
    total = math.fsum(part.points for part in split)
    if split and not math.isclose(total, check.points):
        raise LabError(f"the check {check.name}: its parts sum to {total:g} points, but it is "
                       f"worth {check.points:g}")
    return tuple(PlannedPart(part.points, part.title, replace(
        check, name=f"{check.name}, part {part.title!r}", points=part.points, trusted=part.tree,
        names=analyse(part.tree))) for part in split)


def title(cell: NotebookNode) -> str:
    """Return a cell's name for messages: its grade_id, or else its first line."""
    first = (cell.source.strip().splitlines() or [""])[0]
    return cell.metadata.get("nbgrader", {}).get("grade_id") or f"`{first[:60]}`"


def heading(notebook: NotebookNode, index: int) -> str:
    """Return the last heading above a cell; without one, the cell's grade_id."""
    for cell in reversed(notebook.cells[:index]):
        if cell.cell_type == "markdown" and not cell.metadata.get("nbgrader") \
                and (found := HEADING.findall(cell.source)):
            return found[-1].strip()
    return notebook.cells[index].metadata.get("nbgrader", {}).get("grade_id", "")


def _python(source: str, name: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise LabError(f"the cell {name} runs on the trusted side, so it must be plain Python, "
                       f"without magics, `!` or top-level await: {error}") from error


def _require_given(tree: ast.Module, name: str) -> None:
    """Raise LabError for a script check that the course's mistake would make every student fail."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "check.script":
            words = {word.arg: word.value for word in node.keywords}
            if error := error_in(words.get("only"), words.get("given")):
                raise LabError(f"the cell {name}: check.script: {error}")


def definitions(source: str) -> ast.Module:
    """Return the imports, functions, classes, and constants at the top level of a cell."""
    try:
        tree = ast.parse(python_of(source))
    except (SyntaxError, ValueError):  # %%bash, say: then there are none
        tree = ast.Module([], [])
    return ast.Module([node for node in tree.body if isinstance(node, DEFINITIONS)
                       or (isinstance(node, ASSIGNMENTS) and _calculates(node))], [])


def _calculates(node: ast.AST) -> bool:
    """Return whether the code calls only pure functions, so that it can run on both sides."""
    called = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    return all((isinstance(func, ast.Name) and func.id in PURE)
               or (isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)
                   and func.value.id in PURE_MODULES and not FILES.match(func.attr))
               for func in called)


def bound_by_answers(source: NotebookNode) -> frozenset[str]:
    """Return the global names that the reference solution binds or changes.

    A check takes these from the student, even if a builtin, an earlier check, or an untagged cell
    (`total = 0`) binds the same name.
    """
    names: set[str] = set()
    for cell in source.cells:
        if cell.cell_type == "code" and role_of(cell.metadata) in (Role.ANSWER, Role.DRIVER):
            try:
                tree = ast.parse(python_of(cell.source))
            except (SyntaxError, ValueError):  # a script
                continue
            bindings = analyse(tree)
            names |= {*bindings.binds, *(name for name, *_ in changed(tree, bindings))}
    return frozenset(names)

"""Resolve what a script check compares with from the reference, and write it into the check.

`check.script("code/mine.sh", only=["--micro-batch-size"])` becomes, in all notebooks,
`check.script("code/mine.sh", only=["--micro-batch-size"], given={...})`. A notebook therefore needs
no file beside it, and the grader reads the values from the course's own cell.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import re
import shlex
import tempfile
import textwrap
import tokenize
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from labcore import workspace
from labcore.errors import LabError
from labkit.build.calls import CheckCall, check_calls
from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems
from labkit.build.stubs import REGION, answered
from labkit.names import analyse

HEADING = re.compile(r"^#+ .*", re.M)
WIDTH = 80  # characters of a line of flags
NONE = ast.Constant(None)
BLANK = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT,
         tokenize.ENDMARKER)


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the arguments of script checks."""
    for cell in lab.of(Role.CHECK, Role.CHECK_SETUP):
        for call in script_calls(cell):
            if cell.role is Role.CHECK_SETUP:
                problems.add(cell, call.node.lineno, "check.script belongs in the check cell")
            elif error := error_in(call.arguments.get("only"), call.arguments.get("given", NONE)):
                problems.add(cell, call.node.lineno, f"check.script: {error}")
            elif not is_none(call.arguments.get("given", NONE)):
                problems.add(cell, call.node.lineno, "check.script: `lab build` writes given= "
                             "from the reference: leave it out, or compare nothing: given=None")


def error_in(only: ast.expr | None, given: ast.expr | None) -> str:
    """Return the error in the literal arguments of check.script, or an empty string.

    Args:
        only: the value of `only=`, or None if it is missing.
        given: the value of `given=`, or None if it is missing.
    """
    from labkit.check.compared import settable_fields
    from labkit.check.given import require_sound

    if given is None:
        return ("it has no reference job to compare with: `lab build` writes given= into the "
                "checks of a lab; in a notebook of your own write given=None, and compare "
                "job.flags yourself")
    try:
        settable_fields(names_in(only))
        if not is_none(given):
            require_sound(ast.literal_eval(given))
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def is_none(node: ast.expr) -> bool:
    """Return whether an expression is the constant None."""
    return isinstance(node, ast.Constant) and node.value is None


def with_given(lab: Lab, problems: Problems) -> Lab:
    """Return the lab with `given=` in every script check.

    If the lab has other errors, no script is run and the lab is returned unchanged.
    """
    if problems.errors:
        return lab
    return replace(lab, cells=tuple(_filled_in(cell, lab, problems) if cell.role is Role.CHECK
                                    else cell for cell in lab.cells))


def _filled_in(cell: Cell, lab: Lab, problems: Problems) -> Cell:
    source = cell.source
    # Start at the last call, so that the positions of the others stay valid.
    for call in sorted(script_calls(cell), key=_position, reverse=True):
        if "given" in call.arguments:
            continue
        try:
            source = _inserted(source, call.node, _literal(_given_value(call, cell, lab)))
        except (LabError, ValueError) as error:
            problems.add(cell, call.node.lineno, f"check.script: {error}")
    if source == cell.source:
        return cell
    tree = ast.parse(source)
    return replace(cell, source=source, tree=tree, names=analyse(tree))


def _position(call: CheckCall) -> tuple[int, int]:
    return call.node.lineno, call.node.col_offset


def script_calls(cell: Cell) -> list[CheckCall]:
    """Return the calls of check.script in a cell."""
    return [call for call in check_calls(cell.tree) if call.function == "script"]


def names_in(node: ast.expr | None) -> list[str]:
    """Return the flags in a literal `only=`. Raises ValueError."""
    if node is None:
        return []
    if not (isinstance(node, ast.List | ast.Tuple) and all(
            isinstance(one, ast.Constant) and isinstance(one.value, str) for one in node.elts)):
        raise ValueError("write only= out, as in only=[\"--micro-batch-size\"]")
    return [one.value for one in node.elts if isinstance(one, ast.Constant)]


def _given_value(call: CheckCall, cell: Cell, lab: Lab) -> dict[str, Any]:
    """Return the `given=` value for one call. Raises LabError and ValueError."""
    from labkit.check import given
    from labkit.check.job import resolve

    only = names_in(call.arguments.get("only"))
    path = ast.literal_eval(call.arguments["path"])
    files = tuple((answer.path, answered(answer.source).partition("\n")[2] + "\n")
                  for answer in lab.of(Role.ANSWER) if answer.path and answer.line < cell.line)
    files = (*_shipped(lab.path.parents[1]), *files)
    first, second = (resolve(json.loads(_recorded(files, path, turn))) for turn in (1, 2))
    if first.problems or not first.runs:
        raise LabError("the reference script would fail: " +
                       (" ".join(first.problems) or "it does not start the trainer"))
    kept = given.from_reference(first, only)
    if changed := given.differences(second, kept, only):
        raise LabError("the reference script does not start the same job when it runs again: "
                       f"{changed[0]}; its flags must not depend on the time or on random numbers")
    (answer,) = [answer for answer in lab.of(Role.ANSWER) if answer.path == path]
    if revealed := list(dict.fromkeys(_revealed_flags(kept, answer, lab))):
        raise LabError(f"given= would show students {' and '.join(revealed)}, which the exercise's "
                       "text does not state: name it in only=, or state it in the text")
    return kept


def _shipped(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the job scripts that the course and the labs in `root` give to students."""
    for folder in dict.fromkeys((workspace.CODE / "jobs", root / "code" / "jobs")):
        for script in sorted(folder.glob("*.sh")):
            yield f"code/{script.name}", script.read_text(encoding="utf-8")


@functools.lru_cache(maxsize=100)
def _recorded(files: tuple[tuple[str, str], ...], path: str, turn: int) -> str:
    """Return the record that labkit.check.record makes of a reference, as JSON.

    Args:
        files: the text of every file in the workspace, by path.
        path: the reference's path.
        turn: the number of this run of the reference.
    """
    from labkit.check.record import record

    with tempfile.TemporaryDirectory(prefix="lab-reference-") as folder:
        home = Path(folder)
        for name, text in files:
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text, encoding="utf-8")
        return json.dumps(record(home, path))


def _revealed_flags(kept: dict[str, Any], answer: Cell, lab: Lab) -> Iterator[str]:
    """Yield flags that only the solution sets; `given=` would give them away."""
    from labkit.check.compared import spellings

    solution = "\n".join(region[2] for region in REGION.finditer(answer.source))
    frame = REGION.sub("", answer.source)
    text = "\n".join(_exercise(answer, lab))
    for flag, value in _pairs(kept):
        ways = spellings(flag)
        if any(_names(way, solution) for way in ways) and not any(
                _names(way, frame) for way in ways) and not _names(value or flag, text):
            yield f"{flag} {value}".strip()


def _pairs(kept: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each flag in a `given=` value with its own value, or with "" if it has none."""
    from labkit.check.compared import GPUS, NODES, RANKS

    runs = kept["runs"]
    requested = kept.get("components", [kept])
    for flag, name, places in ((NODES, "nodes", requested), (GPUS, "gpus_per_node", requested),
                               (GPUS, "gpu", requested), (RANKS, "ranks_per_node", runs)):
        yield from ((flag, str(one[name])) for one in places if name in one)
    for run in runs:
        words = shlex.split(run["flags"])
        for word, value in zip(words, [*words[1:], "--"], strict=True):
            if word.startswith("--"):
                yield word, "" if value.startswith("--") else value


def _exercise(answer: Cell, lab: Lab) -> Iterator[str]:
    """Yield the text below the exercise's heading."""
    cells = list(lab.cells)
    for cell in reversed(cells[:cells.index(answer)]):
        if cell.role is Role.TEXT:
            yield HEADING.sub("", cell.source)
            if HEADING.search(cell.source):
                return


def _names(word: str, text: str) -> bool:
    """Return whether a text contains a flag or a value as a whole word."""
    return re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-]|\.\d)", text) is not None


def _inserted(source: str, node: ast.Call, literal: str) -> str:
    """Return `source` with `literal` as the last argument of a call."""
    lines = source.split("\n")[:node.end_lineno]
    lines[-1] = lines[-1].encode()[:node.end_col_offset].decode()
    tokens = []
    with contextlib.suppress(tokenize.TokenError):  # the call is part of a longer expression
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if token.type not in BLANK:
                tokens.append(token)
    row, column = tokens[-2].end  # the text before the closing parenthesis
    at = len("\n".join([*lines[:row - 1], lines[row - 1][:column]]))
    comma = "" if tokens[-2].string == "," else ","
    return f"{source[:at]}{comma}\n{literal}{source[at:]}"


def _literal(kept: dict[str, Any]) -> str:
    """Return the source text of `given=`, with its flags wrapped over several lines."""
    def pairs(values: dict[str, Any], without: str) -> str:
        return "".join(f"{_string(name)}: {_string(value)}, "
                       for name, value in values.items() if name != without)

    runs = []
    for run in kept["runs"]:
        lines = textwrap.wrap(run["flags"], WIDTH, break_long_words=False, break_on_hyphens=False)
        ends = [*(f"{line} " for line in lines[:-1]), *lines[-1:]] or [""]
        flags = "\n".join(f"            {_string(line)}" for line in ends)
        runs.append(f"        {{{pairs(run, 'flags')[:-1]}\n         \"flags\":\n{flags}}}")
    requested = {name: value for name, value in kept.items() if name != "components"}
    start = f"    given={{{pairs(requested, 'runs')}"
    if "components" in kept:
        lines = ",\n        ".join(map(_string, kept["components"]))
        start += f'"components": [\n        {lines}],\n        '
    return f'{start}"runs": [\n' + ",\n".join(runs) + "]}"


def _string(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

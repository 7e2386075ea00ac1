"""The stubs that replace answers in a student's notebook."""

from __future__ import annotations

import ast
import re
from textwrap import dedent

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
REGION = re.compile(rf"^([ \t]*){BEGIN}[ \t]*\n(.*?)^[ \t]*{END}[ \t]*$", re.M | re.S)

PYTHON = 'raise NotImplementedError("Your turn: {what}, then run this cell again")'
BASH = 'echo "Your turn: put your lines here, then run the cell again" >&2; exit 1'
TEXT = "*Your turn: replace this line with your answer.*"
# The stub of a file that %%writefile writes, by the end of its name.
SUFFIXES = {".sh": BASH, ".py": PYTHON.format(what="replace this line by your code")}


def unanswered(source: str, kind: str = "code") -> str:
    """Return the source of an answer cell with a stub for each solution.

    Args:
        source: the cell's source, including the markers.
        kind: the cell's type, code or markdown.
    """
    if kind == "markdown":
        return REGION.sub(lambda match: match[1] + TEXT, source)
    first = source.split("\n")[0]
    if first.startswith("%%writefile"):
        stub = next((stub for suffix, stub in SUFFIXES.items() if first.endswith(suffix)), BASH)
        return REGION.sub(lambda match: match[1] + stub, source)
    return REGION.sub(lambda match: match[1] + _python(match[1], match[2]), source)


def answered(source: str) -> str:
    """Return the source of an answer cell without the markers around its solutions."""
    return "\n".join(line for line in source.split("\n") if line.strip() not in (BEGIN, END))


def without_markers(source: str) -> str:
    """Return the source with markers replaced by empty lines, which preserves line numbers."""
    return "\n".join("" if line.strip() in (BEGIN, END) else line for line in source.split("\n"))


def _python(indent: str, solution: str) -> str:
    if indent:
        return PYTHON.format(what="replace this line by your code")
    from labkit.names import analyse

    try:
        names = analyse(ast.parse(dedent(solution))).binds
    except SyntaxError:
        names = {}
    return PYTHON.format(what=f"define {' and '.join(names)} here" if names
                         else "replace this line by your code")

"""Merge several cells with one grade_id into one answer. JupyterLab keeps the id when a student
copies a cell, and in both halves when a student splits one."""

from __future__ import annotations

import ast
import warnings

from labkit.cells import python_of, transform_work
from labkit.names import analyse

LONGEST = 100_000  # characters that are looked into; more is no answer that a person wrote
MOST_WORK = 400_000  # characters to tokenize, for all copies of one answer together


def merged(pieces: list[str], kind: str) -> str:
    """Return one cell's source with the effect of running `pieces` from top to bottom.

    A piece that defines at least everything defined before it replaces it: it is a copy or a second
    try. Any other piece is appended: it is a half, or one of several functions. Pieces that
    together are not valid Python are not joined; the last valid one counts. Markdown is always
    joined.

    Args:
        pieces: the sources, at least one.
        kind: the cell type.
    """
    distinct = list(dict.fromkeys(piece for piece in pieces if piece.strip())) or pieces[:1]
    text, finder = distinct[0], _NameFinder()
    for piece in distinct[1:]:
        text = f"{text}\n\n{piece}" if kind != "code" else _and_then(text, piece, finder)
    return text


def _and_then(text: str, piece: str, finder: _NameFinder) -> str:
    joined = f"{text}\n{piece}"
    if text.startswith("%%"):  # a file's text, of which any part may look like Python
        return piece if piece.startswith("%%") else joined
    before, new = finder.defines(text), finder.defines(piece)
    if before is not None and new is not None and before <= new and new:
        return piece
    if finder.defines(joined) is not None:
        return joined
    return text if new is None and before is not None else piece


class _NameFinder:
    """Finds the names that cells bind, within a bounded amount of work for all of them together.

    Past the bound a cell counts as not Python, so the last copy wins.
    """

    def __init__(self) -> None:
        self.left = MOST_WORK
        self.known: dict[str, set[str] | None] = {}

    def defines(self, source: str) -> set[str] | None:
        """Return the global names that the cell binds, or None when it is not Python."""
        if source not in self.known:
            self.left -= transform_work(source)
            self.known[source] = _defines(source) if self.left >= 0 else None
        return self.known[source]


def _defines(source: str) -> set[str] | None:
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():  # on a student's "\d"
            warnings.simplefilter("ignore")
            tree = ast.parse(python_of(source))
            compile(tree, "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            return set(analyse(tree).binds)
    except (SyntaxError, ValueError, RuntimeError, MemoryError):  # IPython's loop limit, too
        return None

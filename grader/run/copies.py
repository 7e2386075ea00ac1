"""One answer out of several cells with its grade_id: JupyterLab keeps the id in a cell that is
copied, and in both halves of a cell that is split."""

from __future__ import annotations

import ast
import warnings

from labkit.build.names import analyse
from labkit.build.reading import python_of
from labkit.guest.magics import transform_work

LONGEST = 100_000  # characters that are looked into; more is no answer that a person wrote
MOST_WORK = 400_000  # characters to tokenize, for all copies of one answer together


def merged(pieces: list[str], kind: str) -> str:
    """What a run of `pieces` (not empty) from top to bottom leaves behind, as one cell's source.

    A piece that defines at least all that came before it defines replaces it: a copy, or a second
    try. Any other piece is appended: a half, or one function of several. Pieces that are not
    Python together are not joined; then the last one counts that is. Text is always joined.
    """
    distinct = list(dict.fromkeys(piece for piece in pieces if piece.strip())) or pieces[:1]
    text, reader = distinct[0], _Reader()
    for piece in distinct[1:]:
        text = f"{text}\n\n{piece}" if kind != "code" else _and_then(text, piece, reader)
    return text


def _and_then(text: str, piece: str, reader: _Reader) -> str:
    joined = f"{text}\n{piece}"
    if text.startswith("%%"):  # a file's text, of which any part may look like Python
        return piece if piece.startswith("%%") else joined
    before, new = reader.defines(text), reader.defines(piece)
    if before is not None and new is not None and before <= new and new:
        return piece
    if reader.defines(joined) is not None:
        return joined
    return text if new is None and before is not None else piece


class _Reader:
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

"""A CSV file whose cells can be replaced in place: every byte that is not replaced stays as it is.

An LMS reads its own file back most reliably when nothing else in it has changed: byte order mark,
encoding, delimiter, quoting, line ends, and column order.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from labcore.errors import LabError

LARGEST = 20_000_000  # bytes
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs"}
BOMS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}

Span = tuple[int, int]  # where a cell begins and ends in the text, quotation marks included


@dataclass(frozen=True)
class Sheet:
    """The cells of a CSV file and their positions in it."""

    path: Path
    rows: list[list[str]]
    lines: list[int]  # the line of the file on which each row ends
    delimiter: str
    _text: str
    _spans: list[list[Span]]
    _bom: bytes
    _encoding: str

    def cell(self, row: int, column: int) -> str:
        """Return a cell's text; empty if the row is too short.

        Args:
            row: index of the row.
            column: index of the column.
        """
        return self.rows[row][column] if column < len(self.rows[row]) else ""

    def replaced(self, cells: Mapping[tuple[int, int], str]) -> bytes:
        """Return the file with these cells, by (row, column), and everything else as it was.

        The new texts are numbers and short words that need no quoting of their own. A cell that was
        quoted stays quoted.
        """
        parts, at = [], 0
        for (row, column), text in sorted(cells.items()):
            if set(text) & set('",;\t\r\n'):
                raise ValueError(f"{text!r} would need quoting")
            start, end = self._spans[row][column]
            quoted = self._text[start:start + 1] == '"'
            parts += [self._text[at:start], f'"{text}"' if quoted else text]
            at = end
        text = "".join([*parts, self._text[at:]])
        return self._bom + text.encode(self._encoding)


def read(path: Path, required: tuple[str, ...]) -> Sheet:
    """Read an LMS's file.

    Args:
        path: the file.
        required: headings of which at least one is in the first row of the right delimiter.

    Raises:
        LabError: the file cannot be read, or no delimiter gives such a first row.
    """
    text, bom, encoding = _decoded(path)
    problem = ""
    for delimiter in DELIMITERS:
        try:
            rows, lines = _parsed(text, delimiter)
        except csv.Error as error:
            problem = problem or str(error)
            continue
        if rows and {cell.strip() for cell in rows[0]} & set(required):
            spans = _spans(text, delimiter)
            if [[_value(text[start:end]) for start, end in row] for row in spans] != rows:
                raise LabError(f"{path}: its quotation marks are not those of a CSV file; download "
                               "it again, and do not save it from a spreadsheet")
            return Sheet(path, rows, lines, delimiter, text, spans, bom, encoding)
    first = text.splitlines()[0][:200] if text.strip() else ""
    raise LabError(f"{path}: the first line has none of the headings {', '.join(required)}"
                   + (f" but {first!r}" if first else ": the file is empty")
                   + (f" ({problem})" if problem else ""))


def _decoded(path: Path) -> tuple[str, bytes, str]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from error
    if len(content) > LARGEST:
        raise LabError(f"{path} has {len(content) / 1e6:.0f} MB; at most {LARGEST / 1e6:.0f} MB "
                       "are read")
    bom = next((mark for mark in BOMS if content.startswith(mark)), b"")
    body = content[len(bom):]
    for encoding in [BOMS[bom]] if bom else ["utf-8", "cp1252"]:
        try:
            text = body.decode(encoding)
        except UnicodeDecodeError:
            continue
        if text.encode(encoding) == body and "\0" not in text:
            return text, bom, encoding
    raise LabError(f"{path} is not text in UTF-8, UTF-16, or Windows-1252: download it again")


def _parsed(text: str, delimiter: str) -> tuple[list[list[str]], list[int]]:
    """Return the rows that are not empty, and the line on which each ends.

    Args:
        text: the file.
        delimiter: the character between cells.

    Raises csv.Error.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, lines = [], []
    for row in reader:
        if row:
            rows.append(row)
            lines.append(reader.line_num)
    return rows, lines


def _spans(text: str, delimiter: str) -> list[list[Span]]:
    """Return the positions of all cells in rows that are not empty, independently of the csv
    module.

    Args:
        text: the file.
        delimiter: the character between cells.
    """
    rows: list[list[Span]] = []
    row: list[Span] = []
    start, quoted = 0, False
    for at, letter in enumerate(text):
        if letter == '"' and (quoted or at == start):
            quoted = not quoted
        elif letter == '"' and text[start] == text[at - 1] == '"':
            quoted = True  # the second of two: a quotation mark inside the cell
        elif not quoted and letter in (delimiter, "\r", "\n"):
            row.append((start, at))
            start = at + 1
            if letter != delimiter:
                rows.append(row)
                row = []
    row.append((start, len(text)))
    rows.append(row)
    return [row for row in rows if len(row) > 1 or row[0][0] != row[0][1]]


def _value(raw: str) -> str:
    if len(raw) > 1 and raw[0] == raw[-1] == '"':
        return raw[1:-1].replace('""', '"')
    return raw

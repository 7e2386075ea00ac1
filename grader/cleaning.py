"""Clean what came out of a sandbox before it is stored or shown: bounded size, known kinds of
output, and no control characters."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from labcore.workspace import CHECKOUT

MOST_OUTPUTS = 1100
MOST_BYTES = 3_000_000  # of all outputs of one cell
COLORS = re.compile("(\x1b\\[[0-9;]{0,20}m)")
# Controls (not \n and \t), bidirectional and invisible marks, line separators, half surrogates.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e"
                    "\u2060-\u206f\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]")
REPLACEMENT_CHARACTER = "\ufffd"
TEXTS = frozenset(("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml",
                   "image/png", "image/jpeg", "image/gif"))
STREAMS = ("stdout", "stderr")


@functools.lru_cache(maxsize=4)
def _machine_paths(course: str) -> list[tuple[str, str]]:
    """Return the folders of this machine whose paths tell students how the instructor set it up,
    and what to show instead; the longest first.

    Args:
        course: the course folder, if it is known.
    """
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = {CHECKOUT / "code": "code", CHECKOUT: "labs"}
    for prefix in (sys.prefix, sys.base_prefix):
        library = Path(prefix) / "lib" / python
        folders |= {library / "site-packages": "site-packages", library: python}
    if course:
        folders[Path(course)] = "course"
    pairs = {str(path): short for folder, short in folders.items()
             for path in (folder, folder.resolve()) if len(path.parts) > 2}
    return sorted(pairs.items(), key=lambda pair: -len(pair[0]))


def without_machine_paths(text: str) -> str:
    """Return text without the paths of this machine: tracebacks name the course's and Python's
    files."""
    if "/" not in text:
        return text
    for path, short in _machine_paths(os.environ.get("LAB_COURSE", "")):
        if path in text:
            text = re.sub(re.escape(path) + r"(?=[/\"':\s,)]|$)", short, text)
    return text


def line(text: str, most: int) -> str:
    """Return bounded text on one line, for a message or a reason.

    Args:
        text: any text.
        most: its maximum length.
    """
    return " ".join(words(text[:most + 1], most).split())


def words(text: str, most: int) -> str:
    """Return bounded text without control characters; it may have several lines.

    Args:
        text: any text.
        most: its maximum length.
    """
    shown = without_machine_paths(text[:most])
    return UNSEEN.sub(REPLACEMENT_CHARACTER, shown) + ("..." if len(text) > most else "")


def terminal(text: str) -> str:
    """Return the text of a stream or a traceback, with colors but no other control characters.

    As on a screen, only the part of a line after its last carriage return counts.
    """
    text = without_machine_paths(text)
    if "\r" in text:
        text = "\n".join(one.rstrip("\r").rpartition("\r")[2] for one in text.split("\n"))
    if text.isascii() and text.isprintable():
        return text
    return "".join(part if at % 2 else UNSEEN.sub(REPLACEMENT_CHARACTER, part)
                   for at, part in enumerate(COLORS.split(text)))


def outputs(sent: Any) -> list[NotebookNode]:
    """Return nbformat outputs, rebuilt from what a guest sent; anything that is not an output is
    dropped."""
    cleaned, budget = [], MOST_BYTES
    for one in sent[:MOST_OUTPUTS] if isinstance(sent, list) else ():
        output = _output(one) if isinstance(one, dict) else None
        if output is None:
            continue
        budget -= len(json.dumps(output))
        if budget < 0:
            cleaned.append(stream("[the rest of this cell's output was too long]\n"))
            break
        cleaned.append(output)
    return cleaned


def stream(text: str) -> NotebookNode:
    return new_output("stream", name="stdout", text=text)


def error(name: str, text: str, traceback: list[str]) -> NotebookNode:
    return new_output("error", ename=name, evalue=text, traceback=traceback)


def _output(sent: dict[str, Any]) -> NotebookNode | None:
    kind = sent.get("output_type")
    if kind == "stream" and sent.get("name") in STREAMS and isinstance(sent.get("text"), str):
        return new_output("stream", name=sent["name"], text=terminal(sent["text"]))
    if kind == "error":
        lines = sent.get("traceback")
        lines = [one for one in lines[:MOST_OUTPUTS] if isinstance(one, str)
                 ] if isinstance(lines, list) else []
        name, text = (one if isinstance(one, str) else "" for one in
                      (sent.get("ename"), sent.get("evalue")))
        return error(words(name, 200), words(text, 10_000), [terminal(one) for one in lines])
    if kind in ("display_data", "execute_result"):
        data = _bundle(sent.get("data"))
        count = sent.get("execution_count")
        more = {"execution_count": count if type(count) is int and 0 <= count < 2**31 else None}
        return new_output(kind, data=data, metadata={},
                          **(more if kind == "execute_result" else {})) if data else None
    return None


def _bundle(data: Any) -> dict[str, Any]:
    """Return the content of known kinds; scripts and widgets are not among them."""
    bundle = {}
    for kind, content in data.items() if isinstance(data, dict) else ():
        if kind in TEXTS and isinstance(content, str):
            bundle[kind] = terminal(content)
    return bundle

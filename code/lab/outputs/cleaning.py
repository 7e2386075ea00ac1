"""Make a cell's outputs fit for the repository: without this machine's names, static, and small.

What a run measured stays as it is. What only says where it ran is replaced (the temporary
workspace, the user, the host, addresses of objects), so that two runs differ in what matters.
"""

from __future__ import annotations

import base64
import getpass
import html
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labcore import workspace

HOME, COURSE, USER, HOST = "/home/student", "/opt/course", "student", "login"
LINES, HEAD = 60, 40  # of a text that is shown; those at its beginning
CHARACTERS = 8_000  # of a text
WIDTH = 1_600  # pixels of a picture
COLORS = 64  # of a picture: drawings have few, and their edges some more
IMAGE = re.compile(r'<img\b[^>]*?\bsrc="data:image/png;base64,([^"]+)"[^>]*>')
FRAME = re.compile(r'<img\b[^>]*?\bsrc="data:image/svg\+xml;base64,([^"]+)"[^>]*>')
ALT = re.compile(r'\balt="([^"]*)"')
ACTIVE = re.compile(r"<(script|iframe|button|input|object|embed)\b|\son\w+=", re.IGNORECASE)
INTERACTIVE = "[When you run this cell, the figure has controls that step through it.]\n"
LIVE = "[When you run this cell, it shows an interactive page here.]\n"
# Pages that draw themselves are of no use as text.
SCRIPTS = ("application/javascript", "application/vnd", "application/x-")


def cleaned(outputs: Sequence[Mapping[str, Any]], home: Path) -> list[dict[str, Any]]:
    """Return the outputs as they are stored.

    Args:
        outputs: a cell's outputs, as the kernel sent them.
        home: the workspace in which it ran.
    """
    made: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            text = "".join(output["text"])
            if made and made[-1].get("name") == output["name"]:
                made[-1]["text"] += text
            else:
                made.append({"output_type": "stream", "name": output["name"], "text": text})
        elif output["output_type"] in ("display_data", "execute_result"):
            made += _displayed(output["output_type"], output["data"])
    for output in made:
        if "text" in output:
            output["text"] = shortened(as_shown(without_places(output["text"], home)))
        elif "text/plain" in output["data"] and len(output["data"]) == 1:
            text = without_places(output["data"]["text/plain"], home)
            output["data"]["text/plain"] = shortened(text)
        elif "text/html" in output["data"]:
            output["data"] = {kind: without_places(text, home)
                              for kind, text in output["data"].items()}
    return [output for output in made if output.get("text", " ")]


def _displayed(kind: str, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the outputs that take the place of a displayed object: its pictures, a page without
    scripts, or its text."""
    text, page = "".join(data.get("text/plain", "")), "".join(data.get("text/html", ""))
    pictures, frames = ([(match[1], html.unescape((ALT.search(match[0]) or ["", ""])[1]))
                         for match in pattern.finditer(page)] for pattern in (IMAGE, FRAME))
    if "image/png" in data:
        pictures = [(data["image/png"], text)]
    if pictures:
        for picture, alt in pictures:
            yield {"output_type": "display_data",
                   "data": {"image/png": compact(picture), "text/plain": alt},
                   "metadata": {"image/png": {"alt": alt}}}
        if ACTIVE.search(page):
            yield {"output_type": "stream", "name": "stdout", "text": INTERACTIVE}
    elif frames and ACTIVE.search(page):  # one of those that its controls step through
        picture, alt = frames[len(frames) // 2]
        yield {"output_type": "display_data",
               "data": {"image/svg+xml": base64.b64decode(picture).decode(), "text/plain": alt},
               "metadata": {"image/svg+xml": {"alt": alt}}}
        yield {"output_type": "stream", "name": "stdout", "text": INTERACTIVE}
    elif page and not ACTIVE.search(page):
        yield {"output_type": kind, "data": {"text/html": page, "text/plain": text},
               "metadata": {}}
    elif page or any(one.startswith(SCRIPTS) for one in data):
        yield {"output_type": "stream", "name": "stdout", "text": LIVE}
    elif text:
        yield {"output_type": kind, "data": {"text/plain": text}, "metadata": {}}


def compact(picture: str) -> str:
    """Return a PNG image with fewer colors and at most WIDTH pixels per line, both in base64."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.width > WIDTH:
        image = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.LANCZOS)
    buffer = io.BytesIO()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def without_places(text: str, home: Path) -> str:
    """Return a text in which no path, user, host, or address is this machine's.

    Args:
        text: what a cell printed.
        home: the workspace in which it ran.
    """
    python = str(Path(sys.prefix).resolve())
    replaced = {str(home): f"{HOME}/workspace", python: f"{COURSE}/.venv", sys.prefix:
                f"{COURSE}/.venv", str(workspace.CHECKOUT): COURSE, str(Path.home()): HOME,
                sys.base_prefix: "/usr"}
    for path in sorted(replaced, key=len, reverse=True):
        if path not in ("/", "/usr"):
            text = re.sub(rf"{re.escape(path)}(?![\w.-])", replaced[path], text)
    for name, general in ((getpass.getuser(), USER), (os.uname().nodename, HOST)):
        if name not in ("root", "localhost"):
            text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", general, text)
    temporary = re.escape(tempfile.gettempdir())
    text = re.sub(rf"{temporary}/(?:tmp|ipykernel_|pytest-)?\w*\d\w*", "/tmp/job", text)
    text = re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x7f", text)
    return re.sub(r"\b(pid[=: ]+|PID[=: ]+)\d+", r"\g<1>1234", text)


def as_shown(text: str) -> str:
    """Return a text in which what a carriage return overwrote is gone, as a terminal shows it."""
    return re.sub(r"^[^\n]*\r(?=[^\n\r])", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)


def shortened(text: str) -> str:
    """Return a long text without its middle, with a line that says how much is left out."""
    lines = text.splitlines(keepends=True)
    if len(lines) > LINES:
        count = len(lines) - LINES + 1
        lines[HEAD:HEAD + count] = [f"[... {count} lines are left out here ...]\n"]
    limit = max(CHARACTERS // max(len(lines), 1), 300)
    return "".join(line if len(line) <= limit else f"{line[:limit]} [...]\n" for line in lines)

"""Draw all figures of the labs: `python images/src/draw.py`, or `--check` for those that are stale.

Each module here but this one and style offers draw() -> Figure and makes images/<its name>.svg, the
same bytes at every run.
"""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path

import matplotlib

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent
sys.path.insert(0, str(HERE))  # the figures' modules, however this one was started


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("draw", "style"))


def svg(name: str) -> bytes:
    """The figure as SVG, with letters as outlines: it looks the same on every machine."""
    figure = importlib.import_module(name).draw()
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    return buffer.getvalue()


def main(check: bool) -> int:
    stale = []
    for name in names():
        path, content = FOLDER / f"{name}.svg", svg(name)
        if path.exists() and path.read_bytes() == content:
            continue
        stale.append(path.name)
        if not check:
            path.write_bytes(content)
    print(f"{'stale' if check else 'drawn'}: {', '.join(stale) or 'none'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))

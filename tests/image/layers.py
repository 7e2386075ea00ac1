"""Contents of an image: the names of all files in all layers, including those hidden later."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from image import Engine

COURSE = "opt/course/"
# What a student may find in the course's folder; `ready`: token files, wanted.py: of the build.
ALLOWED = {"LICENSE", "LICENSE-text", ".venv", "code", "grader", "images", "notebooks",
           "pyproject.toml", "ready", "requirements.lock", "README.md", "wanted.py"}
FOREIGN = (
    (re.compile(r"(^|/)(solutions|nbgrader)(/|$)"), "answers or hidden tests"),
    # All but what `lab validate` needs.
    (re.compile(r"(^|/)grader/(?!(__init__|cleaning|cli|commands)\.py$|__pycache__(/|$)"
                r"|(course|run|sandbox|validate)(/|$))."), "answers or hidden tests"),
    (re.compile(r"(^|/)worked(/|$)"), "worked answers"),
    (re.compile(r"(^|/)gradebook[^/]*\.db$|\.sqlite3?$"), "a gradebook"),
    (re.compile(r"(^|/)munge\.key$|\.key$|(^|/)id_(rsa|ed25519)$"), "a secret key"),
    (re.compile(r"(^|/)(jupyter_cookie_secret|jpserver-[^/]*\.json|start\.lock)$"), "a token"),
    (re.compile(r"(^|/)(\.netrc|\.pypirc|pip\.conf)$|^mnt/.|^run/secrets/."),
     "settings of the machine that built it"),
    (re.compile(r"^usr/local/share/ca-certificates/.|^root/\.(cache|config)/."),
     "leavings of the machine that built it"),
    (re.compile(r"(^|/)(oom|\.git|\.cluster)(/|$)"), "leavings of a run"),
)
# Marks of what is stripped from a lab before students get it.
MARKS = (b"BEGIN HIDDEN TESTS", b"BEGIN SOLUTION")


def files(podman: Engine, image: str) -> Iterator[tuple[str, tarfile.TarInfo, bytes]]:
    """Yield every file of every layer as (path, entry, content); notebooks only have content."""
    process = subprocess.Popen(["podman", "save", "--format", "docker-archive", image],
                               stdout=subprocess.PIPE, env=podman.environment)
    assert process.stdout
    with process, tarfile.open(fileobj=process.stdout, mode="r|") as archive:
        for member in archive:
            if not member.name.endswith(".tar") or not member.isfile():
                continue
            with tarfile.open(fileobj=archive.extractfile(member), mode="r|") as layer:
                for entry in layer:
                    wanted = entry.name.endswith(".ipynb") and entry.isfile()
                    content = layer.extractfile(entry).read() if wanted else b""
                    yield entry.name.removeprefix("./"), entry, content


def problems(entries: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return one sentence per file that has no business in a student's image."""
    collected = []
    for name, content in entries:
        collected += [f"{name}: {what}" for pattern, what in FOREIGN
                      if pattern.search(name) and not in_packages(name)]
        top = name.removeprefix(COURSE).partition("/")[0].removeprefix(".wh.")  # removed again
        if name.startswith(COURSE) and top and top not in ALLOWED:
            collected.append(f"{name}: not for students")
        if "/site-packages/nbgrader" in name:
            collected.append(f"{name}: of the grader")
        collected += [f"{name}: has {mark.decode()}" for mark in MARKS if mark in content]
    return collected


def answers(checkout: Path) -> set[bytes]:
    """Return the worked notebooks' lines of code that the released ones contain nowhere."""
    def cells(folder: Path) -> list[dict]:
        return [cell for path in folder.glob("*.ipynb")
                for cell in json.loads(path.read_text())["cells"]]

    released = "\n".join("".join(cell["source"]) for cell in cells(checkout / "notebooks"))
    lines = {line.strip() for cell in cells(checkout / "notebooks" / "worked")
             if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()}
    return {json.dumps(line)[1:-1].encode() for line in lines
            if len(line) >= 25 and line not in released}


def in_packages(name: str) -> bool:
    """Return True for a library's file; libraries may have folders of any name."""
    return "/site-packages/" in name

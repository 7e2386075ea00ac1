"""Attacks on the way a submission comes in: archives and nbgrader's exchange (rows 30, 31, 35).

    python -m tests.attacks.collecting {stock|ours} FOLDER

Prints lines of JSON: by name, the evidence that it won, which is empty where it did not.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pwd
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.attacks import course
from tests.attacks.course import LAB
from tests.attacks.judge import Grader, remove

BOMB = 120_000_000  # bytes of zeros, 120 KB of zip
TOO_MUCH = 100_000_000
ESCAPES = ("../../../../pwned.ipynb", "/scratch/pwned.ipynb", "a/../../../../../pwned.ipynb",
           "..\\..\\pwned.ipynb")


def bomb(notebook: bytes) -> bytes:
    """Honest aaron; a notebook of zeros, and one in an archive in an archive."""
    inner = zipped({f"deep/{LAB}.ipynb": bytes(BOMB // 4)})
    for _ in range(3):
        inner = zipped({"again.zip": inner})
    return zipped({f"aaron/{LAB}.ipynb": notebook, f"bomb/{LAB}.ipynb": bytes(BOMB),
                   f"nested/{LAB}.zip": inner})


def slip(notebook: bytes) -> bytes:
    return zipped({f"aaron/{LAB}.ipynb": notebook} | dict.fromkeys(ESCAPES, b"pwned"))


def links(notebook: bytes) -> bytes:
    """A link in a zip, and a file through it."""
    content = io.BytesIO(zipped({f"aaron/{LAB}.ipynb": notebook}))
    with zipfile.ZipFile(content, "a") as archive:
        link = zipfile.ZipInfo("way")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/scratch")
        archive.writestr("way/pwned.ipynb", b"pwned")
        passwd = zipfile.ZipInfo(f"linked/{LAB}.ipynb")
        passwd.external_attr = 0o120777 << 16
        archive.writestr(passwd, "/etc/passwd")
    return content.getvalue()


def tar_links(notebook: bytes) -> bytes:
    """The same as a tar, with a hard link and a device."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        def add(name: str, kind: bytes, target: str = "", text: bytes = b"") -> None:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, len(text)
            archive.addfile(entry, io.BytesIO(text))

        add(f"aaron/{LAB}.ipynb", tarfile.REGTYPE, text=notebook)
        add("way", tarfile.SYMTYPE, "/scratch")
        add("way/pwned.ipynb", tarfile.REGTYPE, text=b"pwned")
        add(f"linked/{LAB}.ipynb", tarfile.SYMTYPE, "/etc/passwd")
        add(f"hard/{LAB}.ipynb", tarfile.LNKTYPE, "/scratch/course/gradebook.db")
        add("pipe", tarfile.FIFOTYPE)
        add("../../../pwned.ipynb", tarfile.REGTYPE, text=b"pwned")
    return content.getvalue()


ARCHIVES = {"bomb": (bomb, "zip"), "slip": (slip, "zip"), "links": (links, "zip"),
            "tar-links": (tar_links, "tar.gz")}


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return content.getvalue()


def collect(grader: Grader, archive: Path) -> None:
    """By the command that an instructor has for a download of his LMS."""
    if grader.kind == "ours":
        grader.run("lab", "collect", str(archive), "--lab", LAB, "--as-is")
        return
    downloaded = grader.root / "downloaded" / LAB / "archive"
    downloaded.mkdir(parents=True)
    archive.replace(downloaded / archive.name)
    with (grader.root / "nbgrader_config.py").open("a") as file:
        file.write(r"c.FileNameCollectorPlugin.named_regexp = "
                   r"r'.*/(?P<student_id>[a-z]+)/(?P<file_id>[0-9][a-z0-9_]+)'" "\n")
    grader.run("nbgrader", "zip_collect", LAB)


def from_archive(grader: Grader, name: str, place: Path) -> str:
    make, ending = ARCHIVES[name]
    notebook = (grader.root / "release" / LAB / f"{LAB}.ipynb").read_bytes()
    archive = place / f"download.{ending}"
    archive.write_bytes(make(notebook))
    collect(grader, archive)
    honest = course.folder(grader.root, "aaron") / f"{LAB}.ipynb"
    if grader.kind == "ours" and not honest.is_file():  # stock takes all of an archive or nothing
        return "honest aaron is not there"
    return _evidence(grader.root, place)


def _evidence(root: Path, place: Path) -> str:
    size = 0
    for folder, _, files in os.walk(root):
        for file in (Path(folder) / name for name in files):
            if file.is_symlink():
                return f"a link: {file}"
            size += file.stat().st_size
            if file.suffix == ".ipynb" and b"root:x:0" in file.read_bytes()[:10_000]:
                return f"/etc/passwd is in {file}"
    if size > TOO_MUCH:
        return f"{size / 1e6:.0f} MB on the disk"
    out = [path for path in place.glob("pwned*")] + [path for path in root.glob("pwned*")]
    return f"written: {out[0]}" if out else ""


def exchange(grader: Grader, place: Path) -> str:
    """A student hands in under aaron's name: the folder is the student's, by its owner."""
    root = place / "exchange"
    for folder in ("outbound", "inbound", "feedback"):
        (root / "attacked" / folder).mkdir(parents=True)
    with (grader.root / "nbgrader_config.py").open("a") as file:
        file.write(f"c.Exchange.root = {str(root)!r}\nc.CourseDirectory.course_id = 'attacked'\n")
    notebook = (grader.root / "release" / LAB / f"{LAB}.ipynb").read_text()
    when = "2026-01-31 11:00:00.000000 UTC"
    folder = root / "attacked" / "inbound" / f"aaron+{LAB}+{when}+123456789012"
    folder.mkdir()
    (folder / f"{LAB}.ipynb").write_text(notebook.replace("triple", "mallory"))
    (folder / "timestamp.txt").write_text(when)
    mallory = str(os.getuid())
    with contextlib.suppress(KeyError):
        mallory = pwd.getpwuid(os.getuid()).pw_name
    if grader.kind == "ours":
        (place / "students.csv").write_text(f"id,first_name\naaron,Aaron\n{mallory},Mallory\n")
        grader.must("lab", "roster", "import", str(place / "students.csv"))
    if grader.kind == "stock":
        grader.run("nbgrader", "collect", LAB, "--course", "attacked")
    else:
        grader.run("lab", "collect", str(root / "attacked"), "--lab", LAB)
    taken = course.folder(grader.root, "aaron") / f"{LAB}.ipynb"
    if taken.exists() and "mallory" in taken.read_text():
        return "another student's notebook is taken for aaron's"
    return ""


def main(kind: str, folder: str) -> None:
    place = Path(folder)
    (place / "home").mkdir(exist_ok=True)
    for name in [*ARCHIVES, "exchange"]:
        grader = Grader(kind, place / "course")
        grader.make()
        try:
            evidence = (exchange(grader, place) if name == "exchange"
                        else from_archive(grader, name, place))
        except OSError as error:
            evidence = f"{type(error).__name__}: {error}"
        print(json.dumps({name: {"won": evidence, "said": grader.said[-5000:]}}), flush=True)
        for path in [grader.root, *place.glob("pwned*"), *place.glob("download*")]:
            with contextlib.suppress(FileNotFoundError):
                remove(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

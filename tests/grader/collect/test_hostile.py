"""One bad entry stops nobody, and nothing leaves its place."""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket
import struct
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.collect import which
from grader.collect.collecting import CollectOptions, collect
from grader.course.names import key_of, problem_of
from labcore.errors import LabError
from labcore.terminal import visible
from tests.grader.collect.conftest import NAME, bytes_of_zip, put, zipped

GOOD = f"grace/{NAME}.ipynb"
BIDI = "\u202e"


def link(name: str, target: str) -> tuple[zipfile.ZipInfo, bytes]:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, 0o120777 << 16
    return info, target.encode()


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name, problem", [
    (f"../../ada/{NAME}.ipynb", "leads out"), (f"/ada/{NAME}.ipynb", "absolute"),
    (f"C:/ada/{NAME}.ipynb", "absolute"), (f"ada/..\\..\\{NAME}.ipynb", "one of"),
    (f"ada/../grace/{NAME}.ipynb", "leads out"), (f"ada//{NAME}.ipynb", "empty name"),
    (f"ada/a\nb/{NAME}.ipynb", "control"), (f"ada/\x1b[2J{NAME}.ipynb", "control"),
    (f"ada/{BIDI}bnpyi.{NAME}.ipynb", "invisible"), ("ada/CON.ipynb", "Windows"),
    (f"ada/{'x' * 300}.ipynb", "200 bytes"), ("/".join(["a"] * 40) + ".ipynb", "folders deep"),
    ("ada/x.zip", "archive inside"), ("ada/lab.tar.gz", "archive inside"),
    ("ada /x.ipynb", "space"), ("ada/a\0b.ipynb", "control"),
])
def test_names_that_lead_elsewhere_are_refused(take, submitted, course, tmp_path, answer, name,
                                               problem):
    before = tree(tmp_path) | {"a.zip"}
    source = zipped(tmp_path / "a.zip", {"placeholder" + "x" * (len(name.encode()) - 11): answer(),
                                         GOOD: answer()} if "\0" in name else
                    {name: answer(), GOOD: answer()})
    if "\0" in name:  # Python's zipfile writes no such name
        long = b"placeholder" + b"x" * (len(name.encode()) - 11)
        source.write_bytes(source.read_bytes().replace(long, name.encode()))
    lines = take(source)
    bad = [line for line in lines.values() if line.file != GOOD]
    assert [line.verdict for line in bad] == ["refused"] and problem in bad[0].why
    assert submitted("grace") == answer() and submitted("ada") is None
    new = {path for path in tree(tmp_path) - before if not path.startswith("course/")}
    assert not new


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("make", ["symlink", "twice", "case", "bomb", "large", "encrypted", "torn"])
def test_zips_with_tricks(take, submitted, tmp_path, answer, make):
    ada = f"ada/{NAME}.ipynb"
    bad = {"symlink": [link(ada, "/etc/passwd")],
           "twice": [(ada, answer()), (ada, answer("# other"))],
           "case": [(ada, answer()), (f"ada/{NAME.upper()}.ipynb", answer("# other"))],
           "bomb": [(ada, b"0" * 30_000_000)],
           "large": [(ada, os.urandom(21_000_000))],
           "encrypted": [(ada, answer())], "torn": [(ada, answer())]}[make]
    path = zipped(tmp_path / "a.zip", [*bad, (GOOD, answer())])
    if make in ("encrypted", "torn"):
        content = bytearray(path.read_bytes())
        at = content.index(b"PK\x01\x02")
        if make == "encrypted":
            content[at + 8] |= 1
        else:
            content[60:90] = bytes(30)
        path.write_bytes(content)
    lines = take(path)
    problem = {"symlink": "a link", "twice": "more than once", "case": "more than once",
               "bomb": "zip bomb", "large": "20 MB", "encrypted": "encrypted", "torn": "damaged"}
    assert problem[make] in next(line for line in lines.values() if line.file != GOOD).why
    assert submitted("ada") is None and submitted("grace") == answer()


def test_a_size_that_lies_is_found_while_reading(take, submitted, tmp_path, answer):
    path = zipped(tmp_path / "a.zip", {f"ada/{NAME}.ipynb": b"0" * 50_000_000, GOOD: answer()})
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24:at + 28] = struct.pack("<I", 1000)  # the unpacked size
    path.write_bytes(content)
    line = take(path)[f"ada/{NAME}.ipynb"]
    assert line.verdict == "refused" and ("damaged" in line.why or "20 MB" in line.why)
    assert submitted("grace") == answer()


@contextlib.contextmanager
def grown() -> Iterator[Callable[[], int]]:
    """KiB of memory at the peak within it, above what there was before: not ru_maxrss, which an
    earlier test may have driven higher."""
    def status(name: str) -> int:
        return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    yield lambda: status("VmHWM") - before


def test_bombs_cost_neither_memory_nor_disk(take, submitted, course, tmp_path, answer):
    files = {f"ada/{number}.ipynb": b"[" * 19_000_000 for number in range(6)}
    source = zipped(tmp_path / "a.zip", files | {GOOD: answer()})
    with grown() as kib:
        take(source)
    assert kib() < 100_000
    assert not (course.root / "received" / "ada").exists() and submitted("grace") == answer()


def test_one_students_notebooks_have_a_common_limit(take, tmp_path, answer, monkeypatch):
    monkeypatch.setattr("grader.collect.collecting.MOST_BYTES", 3 * len(answer()))
    lines = take(put(tmp_path / "in", {f"ada/{NAME} ({number}).ipynb": answer()
                                       for number in range(6)}))
    assert sum("MB of ada" in line.why for line in lines.values()) == 2
    monkeypatch.setattr("grader.collect.collecting.MOST_FILES", 5)
    lines = take(tmp_path / "in")
    assert all("6 notebooks; at most 5" in line.why for line in lines.values())


@pytest.mark.parametrize("kind", ["symlink", "link", "fifo", "device", "out", "absolute"])
@pytest.mark.parametrize("packing", ["", "gz", "bz2", "xz"])
def test_tars_with_tricks(take, submitted, tmp_path, answer, kind, packing):
    path = tmp_path / f"a.tar{packing and '.' + packing}"
    member = tarfile.TarInfo(f"ada/{NAME}.ipynb")
    member.type = {"symlink": tarfile.SYMTYPE, "link": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE,
                   "device": tarfile.CHRTYPE}.get(kind, tarfile.REGTYPE)
    member.linkname = f"grace/{NAME}.ipynb" if kind == "link" else "/etc/passwd"
    member.name = {"out": "ada/../../x.ipynb", "absolute": "/x.ipynb"}.get(kind, member.name)
    with tarfile.open(path, f"w:{packing}") as archive:
        archive.addfile(member)
        good = tarfile.TarInfo(GOOD)
        good.size = len(answer())
        archive.addfile(good, io.BytesIO(answer()))
    bad = next(line for line in take(path).values() if line.file != GOOD)
    assert bad.verdict == "refused"
    assert submitted("ada") is None and submitted("grace") == answer()


def test_a_tar_whose_header_is_a_bomb_is_not_read(take, tmp_path):
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 3_000_000_000
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.truncate(3_100_000_000)  # sparse
    with grown() as kib, pytest.raises(LabError, match="larger than a class"):
        take(path)
    assert kib() < 100_000


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x05\x06" + bytes(5),
                                     b"\x1f\x8b" + b"x" * 40, bytes_of_zip({"a": b"b"})[:-9]],
                         ids=["empty", "text", "short zip", "short gzip", "cut zip"])
def test_what_is_no_archive_is_said(take, tmp_path, content):
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(LabError, match=r"not a valid zip or tar"):
        take(tmp_path / "a.zip")


def test_links_and_special_files_in_a_folder_are_not_followed(
        take, submitted, tmp_path, answer, monkeypatch):
    secret = put(tmp_path / "secret", {f"{NAME}.ipynb": answer("# secret")}) / f"{NAME}.ipynb"
    folder = put(tmp_path / "in", {GOOD: answer(), "jm1/x": b""})
    (folder / "ada").symlink_to(secret.parent)
    (folder / "jm1" / f"{NAME}.ipynb").symlink_to(secret)
    os.mkfifo(folder / "jm1" / "pipe.ipynb")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(folder)  # the path of a socket has at most 107 bytes
        listening.bind("jm1/socket.ipynb")
        lines = take(folder)
    assert all(lines[name].why == "a link or a special file" for name in (
        "ada", f"jm1/{NAME}.ipynb", "jm1/pipe.ipynb", "jm1/socket.ipynb"))
    assert submitted("grace") == answer() and submitted("ada") is submitted("jm1") is None


def test_a_link_that_appears_after_the_look_is_not_followed(tmp_path, answer):
    from grader.collect.sources import FileRefused, Folder

    folder = put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer()})
    source = Folder(folder)
    [file] = source.files()
    (folder / "ada").rename(tmp_path / "elsewhere")
    (folder / "ada").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileRefused):
        source.read(file)


def test_nothing_is_written_through_a_link_in_submitted(take, course, submitted, tmp_path, answer):
    outside = tmp_path / "outside"
    outside.mkdir()
    (course.root / "submitted" / "ada").symlink_to(outside)
    lines = take(put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer(), GOOD: answer()}))
    assert "is a link" in lines[f"ada/{NAME}.ipynb"].why and not list(outside.iterdir())
    assert submitted("grace") == answer()


@pytest.mark.slow
@given(st.text(max_size=60) | st.text("./\\:\u202e\0 aA~", max_size=30))
def test_a_name_that_is_let_through_stays_in_its_folder(name):
    if problem_of(name):
        return
    path = os.path.normpath(f"/root/{name}")
    assert path == f"/root/{name}" and path.startswith("/root/") and "\0" not in path
    assert visible(name) == name and key_of(key_of(name)) == key_of(name)


def test_a_zip_of_a_version_to_come_is_refused(course, tmp_path, answer):
    path = zipped(tmp_path / "a.zip", {GOOD: answer()})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\1\2") + 6] = 64
    path.write_bytes(content)
    with pytest.raises(LabError, match="is not a valid zip or tar"):
        collect(course, str(path), CollectOptions())


@settings(max_examples=60,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bytes_that_were_damaged_give_a_table_or_an_error(course, tmp_path, answer, data):
    path = zipped(tmp_path / "a.zip", {f"ada/{NAME}.ipynb": answer(), GOOD: answer()})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[:data.draw(st.integers(0, len(content)))]
                     if data.draw(st.booleans()) else content)
    with contextlib.suppress(LabError):
        collect(course, str(path), CollectOptions())


@pytest.mark.parametrize("name, taken", [
    (f"{NAME}{'1' * 28}x.ipynb", False), (f"{NAME}{'copy1' * 20}x.ipynb", False),
    (f"{NAME}{'1' * 28}.ipynb", True), (f"{NAME} (2)-copy12_v3 final.ipynb", True)])
def test_no_name_of_a_file_takes_long_to_be_compared_with_a_labs(name, taken):
    begun = time.process_time()
    assert which._is_called(name, NAME) is taken
    assert time.process_time() - begun < 5

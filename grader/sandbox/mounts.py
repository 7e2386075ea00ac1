"""The list of everything that a sandbox sees, for every back end."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labcore.errors import LabError
from labcore.workspace import CHECKOUT, CODE

HOME = "/home/student"
FILES = "/run/files.tar"  # the submission's extra files, unpacked into the home at the start
HOSTNAME = "sandbox"
USER = "student"
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
# Of /etc, only what programs need to start.
ETC = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/ssl/openssl.cnf")
WRITABLE = (HOME, "/tmp", "/dev/shm")


@dataclass(frozen=True)
class Visible:
    """Everything is read-only. Apply in order: links, binds from the outermost in, with masks."""

    links: tuple[tuple[str, str], ...]  # (path, target)
    binds: tuple[tuple[str, str], ...]  # (where, the folder or file shown there)
    masks: tuple[str, ...]  # folders inside a bind that are shown empty
    texts: tuple[tuple[str, bytes], ...]  # made-up files

    @cached_property
    def steps(self) -> list[tuple[str, str, str]]:
        """The mounts as (kind, where, source), parents before children; kind is bind or mask."""
        steps = [("bind", *pair) for pair in self.binds]
        steps += [("mask", path, "") for path in self.masks]
        return sorted(steps, key=lambda step: (step[1].count("/"), step[1]))

    def covered(self, folder: str) -> bool:
        """Return whether a bind provides a folder, so that it need not be created."""
        above = [kind for kind, where, _ in self.steps if f"{folder}/".startswith(f"{where}/")]
        return above[-1:] == ["bind"]

    def shows(self, path: Path) -> bool:
        """Return whether this file or folder of the host is visible inside."""
        real = path.resolve()
        closest = [("", -1)]
        for kind, where, source in self.steps:
            folder = Path(source or where)
            if real.is_relative_to(folder):
                closest.append((kind, len(folder.parts)))
        return max(closest, key=lambda pair: (pair[1], pair[0] == "mask"))[0] == "bind"


def visible(uid: int, prefixes: Iterable[str] | None = None, code: Path = CODE,
            checkout: Path = CHECKOUT, grader: Path | None = None,
            shown: Mapping[str, str] | None = None) -> Visible:
    """Return what the user with this number sees.

    Args:
        uid: the user's number inside.
        prefixes: the folders of the Python environment; those of this interpreter by default.
        code: the checkout's code/.
        checkout: the checkout, hidden except for `code`.
        grader: the installed grader, hidden.
        shown: files and folders to show in place of others, from grader.sandbox.masks.

    Raises LabError for an environment that cannot be shown.
    """
    prefixes = (sys.base_prefix, sys.prefix) if prefixes is None else tuple(prefixes)
    grader = Path(__file__).resolve().parents[1] if grader is None else grader
    links, binds = [], {}
    for path in (*SYSTEM, *ETC):
        if os.path.islink(path) and path in SYSTEM:
            links.append((path, os.readlink(path)))
        elif os.path.exists(path):
            binds[path] = os.path.realpath(path)
    for folder in (*prefixes, str(code)):
        _require_narrow(folder)
        for where in {os.path.abspath(folder), os.path.realpath(folder)}:
            binds[where] = os.path.realpath(folder)
    sources = {Path(source) for source in binds.values()}
    masks = [str(path) for path in {checkout.resolve(), grader.resolve()}
             if any(path.is_relative_to(folder) for folder in sources)]
    binds |= dict(_replaced(binds, shown or {}))
    return Visible(tuple(links), tuple(sorted(binds.items())), tuple(sorted(masks)), _texts(uid))


def _replaced(binds: Mapping[str, str], shown: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the replacements at every place where a bind would show the original.

    Args:
        binds: the folder or file shown at each path.
        shown: the replacements by the original's path.
    """
    for original, replacement in shown.items():
        for where, source in binds.items():
            if Path(original).is_relative_to(source):
                yield os.path.normpath(f"{where}/{Path(original).relative_to(source)}"), replacement


def _require_narrow(folder: str) -> None:
    """Raise LabError for a prefix such as / or a home folder, which would show everything in it."""
    real = Path(folder).resolve()
    if len(real.parts) < 2 or Path.home().resolve().is_relative_to(real):
        raise LabError(f"the Python environment is {real} itself, and a sandbox shows all of it to "
                       "students' code: make one in a folder of its own (make grade does)")


def _texts(uid: int) -> tuple[tuple[str, bytes], ...]:
    return (("/etc/passwd", f"{USER}:x:{uid}:{uid}::{HOME}:/bin/bash\n".encode()),
            ("/etc/group", f"{USER}:x:{uid}:\n".encode()),
            ("/etc/hostname", f"{HOSTNAME}\n".encode()),
            ("/etc/hosts", f"127.0.0.1 localhost {HOSTNAME}\n".encode()),
            ("/etc/nsswitch.conf", b"passwd: files\ngroup: files\nhosts: files\n"))


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Return all variables of a sandbox; the grader's own are not among them."""
    programs = [os.path.join(sys.prefix, "bin"), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"]
    return {"HOME": HOME, "PATH": os.pathsep.join(programs), "LANG": "C.UTF-8", "TZ": "UTC",
            "USER": USER, "LOGNAME": USER, "SHELL": "/bin/bash", "TMPDIR": "/tmp",
            "LAB_HOME": f"{HOME}/workspace", "PYTHONPATH": str(CODE), "PYTHONSAFEPATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1", "TERM": "dumb"} | extra


def python(module: str) -> list[str]:
    """Return a command that runs a module of `code/` inside, no matter what the environment
    sets."""
    start = f"import sys, runpy; sys.path.insert(0, {str(CODE)!r}); sys.argv[:] = [{module!r}]; "
    return [sys.executable, "-I", "-c",
            start + f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"]


def folders_above(paths: Iterable[str]) -> list[str]:
    """Return every parent folder of `paths`, outermost first, without the root."""
    parents = {str(parent) for path in paths for parent in Path(path).parents}
    return sorted(parents - {"/"}, key=lambda path: (path.count("/"), path))


def archive(files: dict[str, bytes]) -> bytes | None:
    """Return the files as a tar. Raises LabError for one outside the home folder."""
    if not files:
        return None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, content in sorted(files.items()):
            path = Path(os.path.normpath(os.path.join(HOME, name)))
            if not path.is_relative_to(HOME) or path == Path(HOME) or "\0" in name:
                raise LabError(f"file {name!r} for a sandbox: it must be below {HOME}")
            entry = tarfile.TarInfo(str(path.relative_to(HOME)))
            entry.size, entry.mode, entry.type = len(content), 0o644, tarfile.REGTYPE
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


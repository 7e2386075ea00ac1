"""Make the workspace's vocabularies and token files, without a download: `lab data`.

Everything is built in `data/.building` and moved into place at the end; the stamp is written last.
An interrupted run therefore leaves no stamp, and the next run starts over.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from corpus_tools.files import DEFAULT_MB, DataOptions
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.progress import Notify

# Data that was built with the container's image, so that a container starts in seconds.
PREBUILT = workspace.CHECKOUT / "ready" / "data"

STAMP = ".stamp.json"
UNFINISHED = ".unfinished.json"  # exists while files are moved into place


def ensure(home: Path, notify: Notify) -> None:
    """Make the workspace's data if it is missing; keep what the user made or changed.

    Args:
        home: the workspace.
        notify: receives lines about the progress.

    Raises:
        LabError: the data cannot be made.
    """
    data = Path(home) / "data"
    stamp = _read_stamp(data)
    sizes = {name: _size(data / name) for name in stamp["files"]} if stamp else {}
    changed = [name for name, size in sizes.items() if size != stamp["files"][name]]
    if stamp and stamp["own"]:
        notify(f"the data exists, made from your own files: {data}")
    if changed and (stamp["own"] or None not in sizes.values()):
        notify(f"changed since `lab data` made it, and kept: {', '.join(changed)}")
    elif not (stamp and stamp["own"]):
        make(home, notify, DataOptions())


def make(home: Path, notify: Notify, options: DataOptions) -> None:
    """Make the data for `options`, unless it exists. Raises LabError."""
    data = Path(home) / "data"
    key = options.key()
    if not _is_current(data, key, notify):
        workspace.require_writable(data)
        with _lock(data, notify):
            if not _is_current(data, key, notify):  # another run may have made it in the meantime
                _build_and_publish(data, key, notify, options)


def _valid_stamp(data: Path) -> dict | None:
    """Return the stamp, or None if it is missing, or a file is missing or has another size."""
    stamp = _read_stamp(data)
    if stamp and all(_size(data / name) == size for name, size in stamp["files"].items()):
        return stamp
    return None


def _read_stamp(data: Path) -> dict | None:
    """Return the stamp of the last run, even if its files have changed, or None if unknown."""
    try:
        stamp = json.loads((data / STAMP).read_text(encoding="utf-8"))
        return stamp if isinstance(stamp["files"], dict) and "own" in stamp else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _is_current(data: Path, key: str, notify: Notify) -> bool:
    stamp = _valid_stamp(data)
    if not stamp or stamp["key"] != key:
        return False
    notify(f"data is up to date: {data}")
    for line in stamp["summary"]:
        notify(line)
    return True


@contextmanager
def _lock(data: Path, notify: Notify) -> Iterator[None]:
    """Hold the lock of `lab data`, which the system releases if this process dies."""
    with open(data / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            notify(f"waiting for another `lab data` in {data} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_and_publish(data: Path, key: str, notify: Notify, options: DataOptions) -> None:
    from corpus_tools.files import Builder
    from minimegatron.errors import UserError

    staging = data / ".building"
    shutil.rmtree(staging, ignore_errors=True)  # left by a run that was killed
    try:
        staging.mkdir()
        summary = _copy_prebuilt(staging, key, notify) or Builder(staging, notify, options).build()
        stamp = {"key": key, "own": options != DataOptions(), "summary": summary}
        _publish(staging, data, stamp, options.inputs, notify)
    except UserError as error:
        raise LabError(str(error)) from error
    except OSError as error:
        raise LabError(f"cannot write the data in {data} ({error.strerror or error}): free some "
                       "space, or set LAB_HOME to another folder") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for line in summary:
        notify(line)


def _copy_prebuilt(staging: Path, key: str, notify: Notify) -> list[str] | None:
    """Copy the prebuilt data and return its summary, or return None if it has another key."""
    stamp = _valid_stamp(PREBUILT)
    if not stamp or stamp["key"] != key:
        return None
    notify(f"copying the data that was made with this image: {PREBUILT}")
    for name in stamp["files"]:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PREBUILT / name, staging / name)
    return stamp["summary"]


def _publish(staging: Path, data: Path, stamp: dict, inputs: Sequence[str], notify: Notify) -> None:
    """Replace the old files by the new ones; files that the user made are renamed to NAME.bak."""
    old = (_read_stamp(data) or {"files": {}})["files"]
    own_sizes = _record_sizes(staging, data, old)
    (data / STAMP).unlink(missing_ok=True)
    built = sorted(path for path in staging.rglob("*") if path.is_file())
    names = [str(path.relative_to(staging)) for path in built]
    read = {Path(path).resolve() for path in inputs}
    stale = [data / name for name in old if name not in names and (data / name).resolve() not in
             read]
    for name in sorted({*old, *names}):  # a file that `lab data` did not make must not be lost
        if _size(data / name) not in (None, *own_sizes.get(name, ())):
            os.replace(data / name, data / f"{name}.bak")
            notify(f"  {name} was yours: kept as {name}.bak")
    # Index files are removed first and added last, so that a new .bin never has an old .idx.
    stale += [data / name for name in names if name.endswith(".idx")]
    # Index maps that the trainer made from the old data.
    stale += data.glob("*/*text_document_*_indexmap_*")
    for path in stale:
        path.unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name.endswith(".idx")):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / name, data / name)
    stamp["files"] = {name: (data / name).stat().st_size for name in names}
    write_atomic(data / STAMP, json.dumps(stamp, indent=1).encode())
    (data / UNFINISHED).unlink()


def _record_sizes(staging: Path, data: Path, old: dict[str, int]) -> dict[str, list[int]]:
    """Record the sizes of all old and new files of ours, so a killed run can tell them apart."""
    path = data / UNFINISHED
    try:
        sizes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        sizes = {}
    new = {str(file.relative_to(staging)): file.stat().st_size
           for file in staging.rglob("*") if file.is_file()}
    for name, size in (*old.items(), *new.items()):
        sizes.setdefault(name, []).append(size)
    write_atomic(path, json.dumps(sizes).encode())
    return sizes


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "data", help="make the workspace's vocabularies and token files",
        description="Make the workspace's vocabularies and token files, without a download. By "
                    "default, the text is the installed Python's library.")
    parser.add_argument("--input", action="append", default=[], metavar="FILE",
                        help='use your own text: JSON lines with a "text" key, optionally '
                             "compressed with gzip, xz, or bzip2; can be repeated")
    parser.add_argument("--vocab-file", metavar="FILE", help="use GPT-2's original vocab.json")
    parser.add_argument("--merge-file", metavar="FILE", help="use GPT-2's original merges.txt")
    parser.add_argument("--size-mb", type=int, metavar="N",
                        help="use at most N MB of the Python library's text (default: "
                             f"{DEFAULT_MB})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.size_mb is not None and arguments.input:
        raise LabError("--size-mb limits the Python library's text: with --input, leave it out")
    if arguments.size_mb is not None and arguments.size_mb < 1:
        raise LabError(f"--size-mb {arguments.size_mb}: less than 1 MB; nearest: 1")
    options = DataOptions(tuple(arguments.input), arguments.vocab_file, arguments.merge_file,
                          arguments.size_mb or DEFAULT_MB)
    make(workspace.home(), lambda line: print(line, flush=True), options)
    return 0

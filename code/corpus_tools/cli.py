"""`lab data`: vocabularies and token files for the workspace, without a download.

Everything is built in `data/.building` and moved into place at the end; the stamp is written last.
Whatever is interrupted therefore has no stamp, and the next run starts over.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from corpus_tools import corpus
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError

Say = Callable[[str], object]

# Part of the stamp: to be raised when this file makes other bytes from the same text.
FORMAT = 1

# Made when the container's image is built, so that it starts in seconds; elsewhere nothing.
READY = workspace.CHECKOUT / "ready" / "data"

STAMP = ".stamp.json"
UNFINISHED = ".unfinished.json"  # there while files are put in place
DEFAULT_MB = 32


@dataclass(frozen=True)
class Options:
    """Options of `lab data`; without `inputs`, the text is the installed Python's library."""

    inputs: tuple[str, ...] = ()
    vocab_file: str | None = None
    merge_file: str | None = None
    size_mb: int = DEFAULT_MB
    gpt2_entries: int = 50257
    small_entries: int = 4096

    def key(self) -> str:
        """A hash of all that decides the bytes: input texts, parameters, the training library."""
        import tokenizers

        parts = asdict(self) | {"format": FORMAT, "tokenizers": tokenizers.__version__}
        for name in ("vocab_file", "merge_file"):
            parts[name] = parts[name] and _content_hash(parts[name])
        parts["inputs"] = [_content_hash(path) for path in self.inputs] or corpus.fingerprint()
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _content_hash(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise LabError(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def ensure(home: Path, say: Say) -> None:
    """Make the workspace's data unless it is there; what the user made or changed is kept."""
    data = Path(home) / "data"
    stamp = _read_stamp(data)
    sizes = {name: _size(data / name) for name in stamp["files"]} if stamp else {}
    changed = [name for name, size in sizes.items() if size != stamp["files"][name]]
    if stamp and stamp["own"]:
        say(f"data is there, made from your own files: {data}")
    if changed and (stamp["own"] or None not in sizes.values()):
        say(f"changed since `lab data` made it, and left alone: {', '.join(changed)}")
    elif not (stamp and stamp["own"]):
        make(home, say, Options())


def make(home: Path, say: Say, options: Options) -> None:
    """Make the data that `options` ask for, unless it is there. Raises LabError."""
    data = Path(home) / "data"
    key = options.key()
    if not _current(data, key, say):
        workspace.require_writable(data)
        with _lock(data, say):
            if not _current(data, key, say):  # the other run may have made it meanwhile
                _build_and_publish(data, key, say, options)


def _stamp(data: Path) -> dict | None:
    """The stamp of complete data; None where it or any of its files is missing or was cut."""
    stamp = _read_stamp(data)
    if stamp and all(_size(data / name) == size for name, size in stamp["files"].items()):
        return stamp
    return None


def _read_stamp(data: Path) -> dict | None:
    """Return the options of the last run, whatever became of its files, or None if unknown."""
    try:
        stamp = json.loads((data / STAMP).read_text(encoding="utf-8"))
        return stamp if isinstance(stamp["files"], dict) and "own" in stamp else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _current(data: Path, key: str, say: Say) -> bool:
    stamp = _stamp(data)
    if not stamp or stamp["key"] != key:
        return False
    say(f"data is up to date: {data}")
    for line in stamp["summary"]:
        say(line)
    return True


@contextmanager
def _lock(data: Path, say: Say) -> Iterator[None]:
    """One `lab data` at a time; the system frees the lock when its holder dies."""
    with open(data / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"waiting for another `lab data` in {data} ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_and_publish(data: Path, key: str, say: Say, options: Options) -> None:
    from corpus_tools.files import Builder
    from minimegatron.errors import UserError

    staging = data / ".building"
    shutil.rmtree(staging, ignore_errors=True)  # of a run that was killed
    try:
        staging.mkdir()
        summary = _copy_ready(staging, key, say) or Builder(staging, say, options).build()
        stamp = {"key": key, "own": options != Options(), "summary": summary}
        _publish(staging, data, stamp, options.inputs, say)
    except UserError as error:
        raise LabError(str(error)) from error
    except OSError as error:
        raise LabError(f"cannot write the data in {data} ({error.strerror or error}): free some "
                       "space, or set LAB_HOME to another folder") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    for line in summary:
        say(line)


def _copy_ready(staging: Path, key: str, say: Say) -> list[str] | None:
    """The summary of what lies in READY, copied; None where that is not what `key` stands for."""
    stamp = _stamp(READY)
    if not stamp or stamp["key"] != key:
        return None
    say(f"copying the data that was made with this image: {READY}")
    for name in stamp["files"]:
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(READY / name, staging / name)
    return stamp["summary"]


def _publish(staging: Path, data: Path, stamp: dict, inputs: Sequence[str], say: Say) -> None:
    old = (_read_stamp(data) or {"files": {}})["files"]
    ours = _note_ours(staging, data, old)
    (data / STAMP).unlink(missing_ok=True)
    made = sorted(path for path in staging.rglob("*") if path.is_file())
    names = [str(path.relative_to(staging)) for path in made]
    read = {Path(path).resolve() for path in inputs}
    stale = [data / name for name in old if name not in names and (data / name).resolve() not in
             read]
    for name in sorted({*old, *names}):  # what we did not make is not ours to throw away
        if _size(data / name) not in (None, *ours.get(name, ())):
            os.replace(data / name, data / f"{name}.bak")
            say(f"  {name} was yours: kept as {name}.bak")
    # Index files go first and come last: a new .bin must never meet an old .idx.
    stale += [data / name for name in names if name.endswith(".idx")]
    # Maps that the trainer made from the data that is being replaced.
    stale += data.glob("*/*text_document_*_indexmap_*")
    for path in stale:
        path.unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name.endswith(".idx")):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging / name, data / name)
    stamp["files"] = {name: (data / name).stat().st_size for name in names}
    write_atomic(data / STAMP, json.dumps(stamp, indent=1).encode())
    (data / UNFINISHED).unlink()


def _note_ours(staging: Path, data: Path, old: dict[str, int]) -> dict[str, list[int]]:
    """The sizes of every file that we have put there or are about to; outlives a kill."""
    path = data / UNFINISHED
    try:
        ours = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        ours = {}
    new = {str(file.relative_to(staging)): file.stat().st_size
           for file in staging.rglob("*") if file.is_file()}
    for name, size in (*old.items(), *new.items()):
        ours.setdefault(name, []).append(size)
    write_atomic(path, json.dumps(ours).encode())
    return ours


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "data", help="make the workspace's vocabularies and token files", description=__doc__)
    parser.add_argument("--input", action="append", default=[], metavar="FILE",
                        help='your own text instead: JSON lines with a "text" key (.gz too); may '
                        "be given again")
    parser.add_argument("--vocab-file", metavar="FILE", help="GPT-2's own vocab.json")
    parser.add_argument("--merge-file", metavar="FILE", help="GPT-2's own merges.txt")
    parser.add_argument("--size-mb", type=int, metavar="N",
                        help=f"at most N MB of the Python library's text ({DEFAULT_MB})")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.size_mb is not None and arguments.input:
        raise LabError("--size-mb caps the Python library's text; with --input, leave it out")
    if arguments.size_mb is not None and arguments.size_mb < 1:
        raise LabError(f"--size-mb {arguments.size_mb} is not possible: give 1 or more")
    options = Options(tuple(arguments.input), arguments.vocab_file, arguments.merge_file,
                      arguments.size_mb or DEFAULT_MB)
    make(workspace.home(), lambda line: print(line, flush=True), options)
    return 0

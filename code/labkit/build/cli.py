"""`lab build`: generate the notebooks from solutions/, or list the stale ones."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import own_labs, workspace
from labcore.errors import LabError
from labcore.imports import imports_without_gc

if TYPE_CHECKING:
    from labkit.build.lab import Lab

# The folders that hold generated files and nothing else with these endings.
GENERATED = ("notebooks/*.ipynb", "notebooks/checks/*.json", "notebooks/worked/*.ipynb",
             "notebooks/worked/mytrainer/**/*.py", "notebooks/outputs/*.json",
             "grader/source/*/*.ipynb")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    build = subparsers.add_parser("build", help="generate the notebooks from solutions/")
    build.add_argument("labs", nargs="*", metavar="LAB", help="for example 03 (default: all)")
    build.add_argument("--no-worked", action="store_true",
                       help="without the worked notebooks, their outputs, and the links to them")
    build.add_argument("--check", action="store_true",
                       help="write nothing; list stale files, and exit with 1 if there are any")
    build.add_argument("--draft", action="store_true",
                       help="also build labs that lack mutants; `lab release` refuses these")
    own_labs.add_option(build)
    build.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    root = own_labs.resolve_folder(arguments.folder) or workspace.CHECKOUT
    missing: list[str] = []
    labs: list[Lab] = []
    changed = build(root, arguments.labs, worked=not arguments.no_worked,
                    write=not arguments.check, missing=missing if arguments.draft else None,
                    labs=labs)
    for line in missing:
        print(f"draft: {line}", file=sys.stderr)
    for path in changed:
        print(f"{path}: stale" if arguments.check else path)
    if arguments.check and changed:
        print("run `lab build`")
    elif not changed:
        print("all notebooks are up to date")
    if not arguments.check:
        from labkit.build.shortcuts import warnings

        for line in (line for lab in labs for line in warnings(lab)):
            print(f"warning: {line}", file=sys.stderr)
    return 1 if arguments.check and changed else 0


def build(root: Path, names: list[str] | None = None, *, worked: bool = True, write: bool = True,
          missing: list[str] | None = None, labs: list[Lab] | None = None) -> list[str]:
    """Generate the stale notebooks of some labs, and return their paths relative to `root`.

    Args:
        root: the folder with solutions/, in which notebooks/ and grader/source/ are written.
        names: the labs; if empty, all labs, and notebooks without a lab are removed.
        worked: whether to make worked notebooks.
        write: whether to write anything, or only find what is stale.
        missing: for drafts, a list that receives one line per missing piece.
        labs: a list that receives the parsed labs.

    Raises LabError with all errors of all these labs, without writing anything.
    """
    labs = [] if labs is None else labs
    generated = make(root, _solutions(root, names or []), worked, missing, labs)
    stale = {path: text for path, text in generated.items()
             if not (root / path).is_file() or (root / path).read_bytes() != text.encode()}
    orphaned = _orphaned(root, generated, labs if names else None)
    if write:
        _write(root, stale)
        for path in reversed(orphaned):  # a folder's subfolders come before it
            (root / path).unlink()
            if not worked or path.startswith("grader/"):
                _remove_if_empty((root / path).parent)
    return sorted([*stale, *orphaned])


def make(root: Path, solutions: list[Path], worked: bool, missing: list[str] | None = None,
         read_labs: list[Lab] | None = None) -> dict[str, str]:
    """Return the text of every file generated from these solutions, by path relative to `root`."""
    from labkit.build import outputs
    from labkit.build.notebooks import notebooks, worked_pieces, written_twice
    from labkit.build.problems import Problems
    from labkit.build.reading import read_into

    try:
        with imports_without_gc():
            import nbgrader  # noqa: F401
    except ImportError as error:
        raise LabError("lab build needs nbgrader: pip install -e '.[grader]'") from error
    labs, lines = [], []
    for path in solutions:
        problems = Problems(path, draft=missing is not None)
        labs.append(read_into(path, problems))
        if missing is not None:
            missing += problems.missing_lines()
        lines += problems.lines()
    for stray in sorted((root / "solutions").glob("*.ipynb")):
        lines.append(f"solutions/{stray.name}: notebooks store outputs; keep only the .py")
    lines = lines or written_twice(labs)
    if lines:
        raise LabError("\n".join([f"{len(lines)} errors; nothing was written", *lines]))
    if read_labs is not None:
        read_labs += labs
    stored = {lab.name: outputs.read(root, lab.name) if worked else None for lab in labs}
    generated = {path: text for lab in labs
                 for path, text in notebooks(lab, worked, stored[lab.name]).items()}
    if worked:
        generated |= {path: text for lab in labs for path, text in worked_pieces(lab).items()}
    return generated


def _solutions(root: Path, names: list[str]) -> list[Path]:
    from labkit.build.problems import nearest

    sources = {path.stem: path for path in sorted((root / "solutions").glob("*.py"))}
    if not names:
        return list(sources.values())
    chosen = {}
    for name in names:
        stem = Path(name).name.removesuffix(".py").removesuffix(".ipynb")
        fits = [full for full in sources if full == stem or full.partition("_")[0] == stem]
        if len(fits) != 1:
            raise LabError(f"{name}: {len(fits) or 'no'} labs of that name in "
                           f"{root / 'solutions'}{nearest(stem, sources)}")
        chosen[fits[0]] = sources[fits[0]]
    return list(chosen.values())


def _orphaned(root: Path, generated: dict[str, str], labs: list[Lab] | None) -> list[str]:
    """Return the paths of generated files whose source no longer exists.

    Args:
        root: the folder that has them.
        generated: the text of the files that are generated now, by path.
        labs: the only labs whose files to look for; None: all files.
    """
    from labkit.build.notebooks import worked_pieces

    # `lab outputs` makes these, and only for labs that have a worked notebook.
    outputs = {path.replace("/worked/", "/outputs/").replace(".ipynb", ".json")
               for path in generated if path.startswith("notebooks/worked/")}
    existing = {str(path.relative_to(root)) for pattern in GENERATED for path in root.glob(pattern)}
    orphaned = sorted(existing - set(generated) - outputs)
    if labs is None:
        return orphaned
    pieces = {piece for lab in labs for piece in worked_pieces(lab)}
    names = {lab.name for lab in labs}
    return [path for path in orphaned if path in pieces or Path(path).stem in names]


def _write(root: Path, texts: dict[str, str]) -> None:
    """Write all files or none, as far as a file system can: rename after all text is on disk."""
    staged: list[tuple[Path, Path]] = []
    try:
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            staged.append((path.with_name(f".{path.name}.{os.getpid()}"), path))
            staged[-1][0].write_text(text, encoding="utf-8")
        for unfinished, path in staged:
            unfinished.replace(path)
    finally:
        for unfinished, _ in staged:
            unfinished.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()

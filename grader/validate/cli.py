"""`lab validate`: run a notebook as grading will, and print a verdict on each exercise."""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labcore import own_labs, workspace
from labcore.errors import LabError

if TYPE_CHECKING:
    from grader.sandbox.interface import Backend
    from grader.validate.validating import Verdict

EXAMPLES = """examples:
  lab validate 03_multi_node                    the notebook of that name in the workspace
  lab validate notebooks/03_multi_node.ipynb    any file
  !lab validate                                 in a cell: this notebook, as it was last saved

It starts from the notebook that you were given, adds your answers and nothing else, and runs them
from top to bottom as grading will, without the hidden tests. The exit code is 1 unless every
exercise passes."""
INSIDE = "JPY_SESSION_NAME"  # the notebook's path, in the environment of its kernel
COVERS = ("Grading also runs hidden tests, which call your answers with different numbers, "
          "and these verdicts do not cover them.")

NO_SANDBOX = """
This ran without grading's sandbox ({why}): your code could reach the internet and all of
your files, which grading does not allow, and its memory was not limited."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "run a notebook as grading will, before you submit it"
    parser = subparsers.add_parser("validate", help=text, description=text, epilog=EXAMPLES,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", nargs="?", metavar="NOTEBOOK",
                        help="a file, or a lab's name (default: the notebook that you saved last)")
    own_labs.add_option(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from labcore.imports import imports_without_gc

    own_labs.resolve_folder(arguments.folder)
    path = find(arguments.notebook)
    with imports_without_gc():
        from grader.cleaning import COLORS
        from grader.validate import validating
    submitted = validating.read(path)
    release = validating.release_of(submitted, path.stem)
    saved = time.strftime("%H:%M:%S", time.localtime(path.stat().st_mtime))
    print(f"{path}, as saved at {saved}: the answers to {release.stem}, run as in grading",
          flush=True)
    verdicts: list[Verdict] = []
    in_color = sys.stdout.isatty() or INSIDE in os.environ

    def done(verdict: Verdict) -> None:
        verdicts.append(verdict)
        line = _line(verdict)
        print(line if in_color else COLORS.sub("", line), flush=True)

    with _backend() as (backend, missing):
        validating.validate(submitted, release, backend, done)
    passed = sum(one.state in (validating.PASSED, validating.BY_HAND) for one in verdicts)
    print(f"{passed} of {len(verdicts)} exercises are ready. {COVERS}{missing}")
    return 0 if passed == len(verdicts) else 1


def find(given: str | None) -> Path:
    """Return the notebook to validate.

    Args:
        given: a path, or a name in the workspace's notebooks; None for the notebook that this runs
            in, or else the one that was saved last.

    Raises LabError.
    """
    folder = workspace.home() / "notebooks"
    if given is None:
        inside = Path(os.environ.get(INSIDE, ""))
        if inside.suffix == ".ipynb" and inside.is_file():
            return inside
        found = sorted(folder.glob("*.ipynb"), key=lambda path: path.stat().st_mtime)
        if not found:
            raise LabError(f"there is no notebook in {folder}: name one, such as `lab validate "
                           "Downloads/03_multi_node.ipynb`")
        return found[-1]
    for path in (Path(given), folder / given, folder / f"{given}.ipynb"):
        if path.is_file():
            return path
    names = sorted(path.stem for path in folder.glob("*.ipynb"))
    near = difflib.get_close_matches(Path(given).stem, names, n=1, cutoff=0.3) or names[:1]
    raise LabError(f"{given}: no such notebook, here or in {folder}"
                   + (f"; nearest: {near[0]}" if near else ""))


@contextmanager
def _backend() -> Iterator[tuple[Backend, str]]:
    """Yield the sandbox of grading and an empty text; or else a plain one, and a text that explains
    what is missing."""
    from grader.sandbox import choice
    from grader.sandbox.interface import Unavailable
    from grader.sandbox.unisolated import Unisolated

    sandbox, why = None, ""
    try:
        sandbox = choice.choose()
    except Unavailable as error:
        why = " ".join(str(error).split()) if shutil.which("bwrap") else \
            "bubblewrap is not installed"
    if sandbox is not None:
        yield sandbox, ""
        return
    with tempfile.TemporaryDirectory(prefix="lab-validate-") as folder:
        plain = Unisolated(Path(folder))
        try:
            yield plain, NO_SANDBOX.format(why=why)
        finally:
            plain.end()


def _line(verdict: Verdict) -> str:
    from grader.validate import validating
    from labcore.colors import bad, good, strong

    sign = {validating.PASSED: good("✓"), validating.FAILED: bad("✗"),
            validating.UNDECIDED: bad("?"), validating.BY_HAND: "-"}[verdict.state]
    worth = f"{verdict.most:g} point{'' if verdict.most == 1 else 's'}"
    points = (f"{verdict.points:g} of {worth}" if verdict.points is not None
              else f"{worth}, graded by a person")
    lines = [f"{sign} {strong(verdict.exercise)}: {points}"]
    lines += [f"    {line}" for line in verdict.text.splitlines() if line.strip()]
    lines += [f"    {bad('!')} {warning}" for warning in verdict.warnings]
    return "\n".join(lines)

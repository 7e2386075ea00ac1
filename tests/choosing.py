"""Which files a run with `-m` need not import, because it can choose none of their tests.

Importing all tests costs each worker ten seconds of CPU time, which is most of what a run of a few
takes. A file is left out only if its text shows that it has nothing to offer; files that are named
on the command line are always imported.
"""

from __future__ import annotations

import re
from pathlib import Path

NAMED = re.compile(r"\bmark\.(\w+)")
OF_FILE = re.compile(r"^pytestmark = (\[[^]]*\]|.*)", re.MULTILINE)
WORD, EXCLUDED = re.compile(r"\w+"), re.compile(r"not (\w+)")
# The marks that are always written as `pytest.mark.NAME` in the file of the test.
WRITTEN = ("alone", "cluster", "image", "oracle", "stress")


def can_skip(expression: str, text: str) -> bool:
    """Return whether `-m EXPRESSION` chooses no test of a file.

    Args:
        expression: a mark, or `not A and not B ...`; for any other, no file can be skipped.
        text: the file's text.
    """
    if WORD.fullmatch(expression):
        return expression in WRITTEN and expression not in NAMED.findall(text)
    excluded = [EXCLUDED.fullmatch(part.strip()) for part in expression.split(" and ")]
    if not all(excluded):
        return False
    of_file = OF_FILE.search(text)
    return bool(of_file) and not {found[1] for found in excluded}.isdisjoint(
        NAMED.findall(of_file[1]))


def skips(expression: str, path: Path) -> bool:
    """Return whether a path is a file of tests that `can_skip`.

    Args:
        expression: what follows `-m`.
        path: a file or folder.
    """
    return bool(expression) and path.name.startswith("test_") and path.suffix == ".py" \
        and can_skip(expression, path.read_text())

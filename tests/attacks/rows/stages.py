"""Pieces that several attacks use."""

from __future__ import annotations

PORT = 47811  # on the loopback outside of the sandbox, where a grader's friend listens
SOCKET = "attacks-listener"  # an abstract one, and a file beside the course folder
FORGED_STAMP = "2001-01-01"

# Every place where a grader's files may lie as seen from a student's cell.
LOOK = '''import glob, os
from pathlib import Path
def places():
    yield "@ROOT@"
    yield from ("..", "../..", "../../..", "../../../..")
    for link in ("cwd", "root"):
        for process in glob.glob("/proc/[0-9]*"):
            try:
                yield os.readlink(f"{process}/{link}").replace("/", "", 0)
            except OSError:
                pass
def files(pattern):
    for place in places():
        if os.path.realpath(place) != "/":
            yield from glob.glob(os.path.join(place, pattern), recursive=True)
'''

WRONG_DOUBLE = "def double(x):\n    return 0\n"
WRONG_TRIPLE = "def triple(x):\n    return 0\n"


"""A program that imports torch for itself and its ranks at once."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil

from tests.conftest import FOLDER

PROGRAM = """
import json, os, threading
import warmranks
from warmranks import preload, run_ranks, split

kept = os.open("/dev/zero", os.O_RDONLY)
preload("tests.warmranks.imported")
split()
from tests.warmranks.imported import seen_from_a_rank
(seen,) = run_ranks(seen_from_a_rank, 1, backend=None)
server = warmranks.default_server()
facts = [os.getpid(), server.process.pid, *seen]
server.close()
facts += [server.running, *run_ranks(len, 2, "abc", backend=None)]
threading.Thread(target=threading.Event().wait, args=(60,), daemon=True).start()
try:
    split()
except RuntimeError as error:
    facts.append(str(error))
print(json.dumps([*facts, warmranks.default_server().process.pid]))
"""


def test_the_server_is_a_fork_that_keeps_no_file_and_ends():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          timeout=100, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    own, server, importer, parent_of_ranks, files, *after = json.loads(done.stdout)
    assert importer == own and parent_of_ranks == server != own
    assert files == ["/dev/null"] * 3 + ["socket"]
    assert after[:3] == [False, 3, 3]  # once it has ended, the next run starts another one
    assert "several threads" in after[3]
    assert not any(psutil.pid_exists(pid) for pid in (own, server, after[4]))

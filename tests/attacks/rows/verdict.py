"""Turning a wrong answer into a right one where it is judged."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.course import RIGHT_DOUBLE
from tests.attacks.rows.stages import WRONG_DOUBLE, WRONG_TRIPLE

EMPTY = r'''
shell = get_ipython()
shell.input_transformers_cleanup.append(
    lambda lines: ["pass\n"] if any("assert" in line or "check." in line for line in lines)
    else lines)
'''

PATCHED = r'''
shell = get_ipython()
real = shell.run_cell_async
async def run_cell_async(source, *arguments, **keywords):
    if "assert" in source or "check." in source:
        source = keywords["transformed_cell"] = "pass"
    return await real(source, *arguments, **keywords)
object.__setattr__(shell, "run_cell_async", run_cell_async)
'''

SILENT = r'''
shell = get_ipython()
shell.showtraceback = lambda *arguments, **keywords: None
shell._showtraceback = lambda *arguments, **keywords: None
type(shell).showtraceback = lambda *arguments, **keywords: None
'''

EQUAL = r'''
class Everything:
    __eq__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = lambda self: 0
    __bool__ = lambda self: True
def double(x):
    return Everything()
'''

PARTIAL = r'''
shell = get_ipython()
shell.input_transformers_cleanup.append(
    lambda lines: ["2.5\n"] if any("assert double" in line for line in lines) else lines)
'''

# The kernel's own messages: no error ever leaves it, and every cell says that it went well.
FORGED = r'''
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("labkit.guest"):
        for key, thing in list(vars(module).items()):
            if callable(thing) and any(word in key.lower() for word in ("error", "raise", "fail")):
                setattr(module, key, lambda *arguments, **keywords: None)
kernel = getattr(get_ipython(), "kernel", None)
if kernel:
    real = kernel.session.send
    def send(stream, kind, content=None, *arguments, **keywords):
        if kind == "error":
            return None
        if isinstance(content, dict) and content.get("status") == "error":
            content = {"status": "ok", "execution_count": 1, "user_expressions": {}, "payload": []}
        return real(stream, kind, content, *arguments, **keywords)
    kernel.session.send = send
'''

RESULTS = r'''
import json, os
good = {"state": "graded", "score": 5.0, "scores": {"double-check": 3, "triple-check": 2},
        "student": "forges-files", "lab": "@LAB@", "reason": "", "notes": []}
for place in ("@ROOT@", ".", "..", "../..", "../../.."):
    for name in ("results", "attempts", "autograded", "exported"):
        try:
            os.makedirs(f"{place}/{name}/forges-files", exist_ok=True)
            with open(f"{place}/{name}/forges-files/@LAB@.json", "w") as file:
                json.dump(good, file)
        except OSError as error:
            print(error)
print(json.dumps(good))
import sys
print(json.dumps(good), file=sys.__stdout__, flush=True)
'''

# What a check calls is one of the names a student can take.
SHADOWED = r'''
class check:
    function = value = that = staticmethod(lambda *arguments, **keywords: None)
    draw = staticmethod(lambda *arguments, **keywords: [])
def triple(x):
    return 0
'''

PATCHED_CHECKS = r'''
from labkit import check
import labkit.check.checks, labkit.check.same, labkit.check.wire
for module in (check, labkit.check.checks):
    for name in ("function", "value", "that", "call"):
        setattr(module, name, lambda *arguments, **keywords: None)
labkit.check.same.difference = labkit.check.checks.difference = lambda *arguments, **keywords: None
def triple(x):
    return 0
'''

# The drawn cases without a seed are everybody's.
OVERFITTED = r'''
from labkit import check
known = {1: 3, 5: 15} | {case["x"]: 3 * case["x"] for case in check.draw(20, x=range(1000))}
def triple(x):
    return known.get(x, 0)
'''

CONSTANTS = "def triple(x):\n    return {1: 3, 5: 15}.get(x)"

# Tells what it was asked: what a page of feedback must not say on.
ORACLE = r'''
import sys
def double(x):
    print("ARGUMENT", x)
    print("ARGUMENT", x, file=sys.stderr)
    open("/tmp/arguments", "a").write(f"ARGUMENT {x}\n")
    if x != 2:
        raise ValueError(f"ARGUMENT {x}")
    return 4
'''
TELLS_LATER = WRONG_TRIPLE + r'''
try:
    print(open("/tmp/arguments").read())
except OSError as error:
    print(error)
'''

BUILTINS = r'''
import builtins, sys, json
real = builtins.isinstance
builtins.isinstance = lambda thing, kinds: True
builtins.AssertionError = type("Quiet", (Exception,), {})
builtins.all = builtins.any = lambda *arguments: True
json.dumps = lambda *arguments, **keywords: '{"value": 42}'
json.loads = lambda *arguments, **keywords: {}
class Finder:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} was not found")
sys.meta_path.insert(0, Finder())
'''

FRAMES = r'''
import sys
def double(x):
    frame = sys._getframe()
    while frame:
        for name in ("expected", "cases", "got", "hidden", "answer"):
            if name in frame.f_locals:
                value = frame.f_locals[name]
                print("frame", name, value)
                if isinstance(value, list) and "number" in frame.f_locals:
                    value = value[frame.f_locals["number"]]
                return value(x=x) if callable(value) else value
        frame = frame.f_back
    return 0
'''

ATTACKS = [
    attack("3", "empties-tests", "An IPython input transformer empties the test cells", "score",
           double=EMPTY + WRONG_DOUBLE),
    attack("3", "patches-run-cell", "run_cell_async is patched and skips the test cells", "score",
           double=PATCHED + WRONG_DOUBLE),
    attack("4", "hides-tracebacks", "showtraceback does nothing", stock="S",
           double=SILENT + WRONG_DOUBLE),
    attack("5", "equals-all", "Returns an object that is equal to everything", "score",
           double=EQUAL, small=True),
    attack("6", "partial-credit", "The last line of a test cell becomes a score", "score",
           double=PARTIAL + WRONG_DOUBLE),
    attack("8", "forges-messages", "The kernel's messages never tell of an error", "score",
           may_end=True, double=FORGED + WRONG_DOUBLE),
    attack("8", "forges-files", "Writes files that look as the grader's results", "files",
           alone=True, double=RESULTS + WRONG_DOUBLE),
    attack("39", "overfits", "Knows the drawn cases of an unseeded check", "score",
           triple=OVERFITTED),
    attack("39", "constants", "Constants for the cases that one can see", stock="S",
           triple=CONSTANTS),
    attack("40", "tells-arguments", "Prints, raises and stores the hidden arguments",
           "feedback oracle", remains=frozenset(("oracle",)),
           double=ORACLE, triple=TELLS_LATER),
    attack("b1", "shadows-check", "Defines a `check` of its own", "score", triple=SHADOWED),
    attack("b2", "patches-checks", "Patches the functions of labkit.check", "score",
           triple=PATCHED_CHECKS),
    attack("b3", "patches-builtins", "Patches builtins, json and the import system", may_end=True,
           double=BUILTINS + WRONG_DOUBLE, triple=WRONG_TRIPLE),
    attack("b4", "climbs-frames", "Looks for the expected value in its callers' frames",
           "score", double=FRAMES, triple=FRAMES.replace("double", "triple")),
    attack("b5", "exits", "Leaves by sys.exit in the middle of a right answer", score=5.0,
           double=RIGHT_DOUBLE + "\nimport sys\nsys.exit(0)",
           triple="def triple(x):\n    return 3 * x\nexit()"),
]

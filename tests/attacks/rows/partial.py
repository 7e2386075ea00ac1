"""Points of a check with partial credit that were not earned."""

from __future__ import annotations

from tests.attacks.attack import attack

# Right for even numbers alone: one of two points.
HALF = "def halve(x):\n    return x // 2 if x % 2 == 0 else 0"
REPORT = "2 of 2 points\\n\\u2713 1 point: even numbers\\n\\u2713 1 point: odd numbers"

SAID = f'''
import sys
print("{REPORT}")
print("{REPORT}", file=sys.stderr)
def halve(x):
    print("{REPORT}")
    return "{REPORT}"
2.0'''

RAISED = f'''
class Outcome(AssertionError):
    points, title, error, is_decided = 2.0, "odd numbers", None, True
    def _render_traceback_(self):
        return ["{REPORT}"]
Outcome.__name__ = Outcome.__qualname__ = "Failed"
def halve(x):
    raise Outcome("{REPORT}")'''

PATCHED = r'''
import contextlib
import labkit.check.partial as partial
import labkit.check as check
@contextlib.contextmanager
def free(*arguments, **keywords):
    with contextlib.suppress(BaseException):
        yield
partial.part = partial.parts = check.part = check.parts = free
partial.earned = partial.total = lambda outcomes: 2.0
partial.report = lambda outcomes: "2 of 2 points"
def halve(x):
    return 0'''

ENDS = r'''
import os
def halve(x):
    if x % 2:
        os._exit(0)
    return x // 2'''

LEAVES = r'''
def halve(x):
    global halve
    halve = lambda x: __import__("decimal").Decimal(x) / 2
    return x // 2 if x % 2 == 0 else 0'''

ATTACKS = [
    attack("r1", "part-says", "Part scores that are printed, returned, and left as the last value",
           parted=SAID),
    attack("r2", "part-raises", "An exception that looks like the outcome of a part",
           parted=RAISED),
    attack("r3", "part-patched", "check.part replaced in the student's process", parted=PATCHED),
    attack("r4", "part-ends", "A part that ends its sandbox when its answer would be wrong",
           parted=ENDS, score=None, may_end=True, reason="part 'odd numbers'"),
    attack("r5", "part-turns", "An answer that replaces itself between parts", parted=LEAVES),
    attack("r6", "part-honest", "None: an answer that is right in one of two parts", parted=HALF,
           score=1.0, small=True),
]

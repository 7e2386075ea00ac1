"""Values that are not what they seem, or too much of them."""

from __future__ import annotations

from tests.attacks.attack import attack

LIARS = r'''
class Number(int):
    __eq__ = __ge__ = __le__ = lambda self, other: True
    __ne__ = __gt__ = __lt__ = lambda self, other: False
    __hash__ = int.__hash__
    __class__ = property(lambda self: int)
class Text(str):
    __eq__ = lambda self, other: True
    __hash__ = str.__hash__
class Entries(dict):
    items = lambda self: [(1, 42)]
    __getitem__ = lambda self, key: 42
class Items(list):
    __len__ = lambda self: 1
    __iter__ = lambda self: iter([42])
class Proxy:
    __class__ = property(lambda self: int)
    __eq__ = lambda self, other: True
    __int__ = __index__ = lambda self: 42
    __float__ = lambda self: 42.0
    __array__ = lambda self, *a, **k: __import__("numpy").array(42)
import itertools
turn = itertools.cycle([Number(0), Text("42"), Entries(), Items(), Proxy()])
def {name}(x):
    return next(turn)
'''

PICKLE = r'''
class Bomb:
    def __reduce__(self):
        return open, ("@ROOT@/pwned-by-pickle", "w")
    __getstate__ = __reduce__
    __repr__ = __str__ = lambda self: open("@ROOT@/pwned-by-repr", "w").name
    def __array_interface__(self):
        return {{"data": (0, False), "shape": (10,), "typestr": "|u1", "version": 3}}
def {name}(x):
    import numpy
    return {value}
'''

ODD_NUMBERS = r'''
import math, itertools
turn = itertools.cycle([math.nan, math.inf, -math.inf, -0.0, 10**4000, True, 1e308 * 10])
def {name}(x):
    return next(turn)
'''

COLLIDING = r'''
step = 2**61 - 1
def {name}(x):
    return {{number * step: 0 for number in range(60_000)}}
'''

NESTED = r'''
def {name}(x):
    value = []
    for turn in range(100_000):
        value = [value]
    return value
'''

CYCLIC = r'''
value = []
value += [value, {{"a": value}}]
def {name}(x):
    return value
'''

WIDE = r'''
def {name}(x):
    return [0] * 10**7
'''

ARRAYS = r'''
import numpy
from numpy.lib.stride_tricks import as_strided
def {name}(x):
    return as_strided(numpy.zeros(1), shape=(100_000, 100_000), strides=(0, 0))
'''

OBJECTS = r'''
import numpy
class Everything(numpy.ndarray):
    __eq__ = lambda self, other: True
    shape = property(lambda self: ())
def {name}(x):
    return numpy.array([0, x], dtype=object).view(Everything)
'''

EXCEPTIONS = r'''
import itertools
kinds = itertools.cycle([KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, StopIteration,
                         RecursionError, BaseException, AssertionError])
class Passed(BaseException):
    __str__ = __repr__ = lambda self: exec("raise KeyboardInterrupt")
def {name}(x):
    if x % 2:
        raise Passed()
    raise next(kinds)("right")
'''

LONG_NAMES = r'''
deep = Exception
for turn in range(900):
    deep = type("E" * 10_000, (deep,), {{}})
def {name}(x):
    raise deep("t" * 10_000_000)
'''

RECURSES = r'''
def {name}(x):
    return {name}(x)
'''

LAZY = r'''
def {name}(x):
    while True:
        yield 3 * x
'''

CHANGES = r'''
calls = 0
def {name}(x):
    global calls
    calls += 1
    return 2 * x if calls % 2 else 3 * x
{name}.__name__ = "\x1b[2J<script>pwned()</script>" * 10_000
'''


ROUNDS = "def rounds():\n    return 10**15"

# Seen by the check as 3 once, and then as something on which C code works for minutes.
MINUTES = r'''
import os
def rounds():
    first = not os.path.exists("seen")
    open("seen", "w").close()
    return 3 if first else 20_000_000
'''


def of(program: str, **more: str) -> dict[str, str]:
    """Both answers."""
    return {name: program.format(name=name, **more) for name in ("double", "triple")}


ATTACKS = [
    attack("9", "pickles", "Objects that run code when they are unpickled or shown", stock="S",
           alone=True, **of(PICKLE, value="Bomb()")),
    attack("9", "pickled-array", "An array of such objects",
           **of(PICKLE, value="numpy.array([Bomb()], dtype=object)")),
    attack("i1", "liars", "Subclasses and proxies that are equal to everything",
           **of(LIARS), small=True),
    attack("i2", "odd-numbers", "NaN, infinities, -0.0 and 10**4000", **of(ODD_NUMBERS)),
    attack("i3", "collides", "A dict of 60,000 keys with one hash", may_end=True,
           **of(COLLIDING)),
    attack("i4", "nested", "A list in 100,000 lists", may_end=True, **of(NESTED)),
    attack("i5", "cyclic", "A list that holds itself", **of(CYCLIC)),
    attack("i6", "wide", "A list of ten million", may_end=True, **of(WIDE)),
    attack("i7", "strided", "An array of 80 GB in eight bytes", may_end=True, **of(ARRAYS)),
    attack("i8", "object-array", "Arrays of objects, in a subclass", **of(OBJECTS)),
    attack("i9", "raises-all", "Every exception there is", may_end=True, **of(EXCEPTIONS)),
    attack("i10", "long-names", "An exception with 900 bases and 10 MB of text", may_end=True,
           **of(LONG_NAMES)),
    attack("i11", "recurses", "A call without end", may_end=True, **of(RECURSES)),
    attack("i12", "generates", "A generator without end", may_end=True, **of(LAZY)),
    attack("i14", "steers", "A value that makes a check's own loop endless", score=None,
           reason="time", rounds=ROUNDS),
    attack("i14", "steers-long", "A value on which the check's own C code works for minutes",
           score=None, reason="rounds-check", rounds=MINUTES),
    attack("i13", "changes", "Other results in every call, and a long name", "", score=0.0,
           **of(CHANGES)),
]

"""Free and bound global names, in every kind of scope that Python has."""

import ast
import builtins

import pytest

from labkit.names import analyse


def names(source):
    analysis = analyse(ast.parse(source))
    return set(analysis.binds), {use.name for use in analysis.uses} - set(dir(builtins))


@pytest.mark.parametrize(("source", "binds", "uses"), [
    ("x = y", "x", "y"),
    ("x = x + 1", "x", "x"),
    ("x = 1\ny = x", "x y", ""),
    ("y = x\nx = 1", "x y", "x"),
    ("x += y", "x", "x y"),
    ("x = 1\nx += 1", "x", ""),
    ("a.b += c", "", "a c"),
    ("a[i] = v", "", "a i v"),
    ("x: T = v", "x", "T v"),
    ("x: T", "", "T"),
    ("a, (b, *c) = d", "a b c", "d"),
    ("for i in r: s", "i", "r s"),
    ("with o() as f: f", "f", "o"),
    ("try: pass\nexcept E as e: e", "e", "E"),
    ("del x", "x", ""),
    ("import a.b, c as d", "a d", ""),
    ("from m import f, g as h", "f h", ""),
    ("(x := y)", "x", "y"),
    ("match v:\n case {'k': a, **rest}: a\n case [b, *c]: b\n case K(d) as e: d",
     "a rest b c d e", "v K"),
    # functions
    ("def f(a, *b, c=d, **e): return a, b, c, e, g", "f", "d g"),
    ("def f(a=a): return a", "f", "a"),
    ("def f(): return f", "f", ""),
    ("def f():\n x = 1\n return x", "f", ""),
    ("def f():\n return x\n x = 1", "f", ""),
    ("def f(): return g\ndef g(): return 1", "f g", ""),
    ("def f():\n global x\n x = y", "f x", "y"),
    ("def f():\n x = 1\n def g():\n  nonlocal x\n  x = 2\n return g", "f", ""),
    ("def f():\n def g(): return x\n x = 1\n return g", "f", ""),
    ("def f():\n global x\n def g(): return x\n return g", "f", "x"),
    ("def f(x):\n def g():\n  global x\n  return x\n return g", "f", "x"),
    ("@d\ndef f(a: T) -> R: pass", "f", "d T R"),
    ("def f():\n import m\n return m", "f", ""),
    ("def f():\n for i in r: pass\n return i", "f", "r"),
    ("def f():\n x += 1", "f", ""),
    ("lambda x, y=z: x + y + w", "", "z w"),
    ("async def f():\n async with o as a:\n  return [b async for b in a]", "f", "o"),
    ("def f():\n try: pass\n except E as e: return e", "f", "E"),
    ("def f(v):\n match v:\n  case [a, *b]: return a, b", "f", ""),
    # comprehensions
    ("[i for i in r]", "", "r"),
    ("[i for i in i]", "", "i"),
    ("[j for i in r for j in i if k]", "", "r k"),
    ("{k: v for k, v in d}", "", "d"),
    ("[(x := i) for i in r]", "x", "r"),
    ("def f():\n [(x := i) for i in r]\n return x", "f", "r"),
    ("[lambda: i for i in r]", "", "r"),
    ("(i for i in [j for j in r])", "", "r"),
    ("def f(): return [g(i) for i in range(3)]", "f", "g"),
    # classes
    ("class A(B, metaclass=M): x = y", "A", "B M y"),
    ("class A:\n x = 1\n y = x", "A", ""),
    ("class A:\n x = x", "A", "x"),
    ("class A:\n x = 1\n def f(self): return x", "A", "x"),
    ("class A:\n x = 1\n y = [x for _ in r]", "A", "r x"),
    ("class A:\n def f(self): return A", "A", ""),
    ("class A:\n global x\n x = 1", "A x", ""),
    ("@d\nclass A: pass", "A", "d"),
    ("def f():\n class A:\n  x = y\n return A", "f", "y"),
    ("def f():\n y = 1\n class A:\n  x = y\n return A", "f", ""),
])
def test_what_code_binds_and_needs(source, binds, uses):
    assert names(source) == (set(binds.split()), set(uses.split()))


def test_imports_say_what_a_name_is():
    analysis = analyse(ast.parse(
        "import a.b\nimport c.d as e\nfrom f.g import h as i\nfrom . import j"))
    assert analysis.imports == {"a": "a", "e": "c.d", "i": "f.g.h", "j": "..j"}


def test_a_star_import_is_found():
    assert analyse(ast.parse("x = 1\nfrom m import *")).stars == (2,)


def test_uses_have_their_lines():
    (use,) = analyse(ast.parse("\n\nf = lambda: g\n")).uses
    assert (use.name, use.line) == ("g", 3)

"""The trusted side's proxies for a student's names and for exceptions of functions."""

from __future__ import annotations

import builtins
import copy
import json
import operator

import pytest

from grader.run.proxies import Function, Proxy, rebuilt
from labkit.check.sides import Raised


@pytest.mark.parametrize("name", ["ValueError", "KeyError", "UnicodeDecodeError", "OSError",
                                  "AssertionError"])
def test_an_exception_is_rebuilt_as_its_kind(name):
    error = rebuilt(Raised(("Mine", name, "Exception", "BaseException"), "text"))
    assert isinstance(error, getattr(builtins, name))
    assert (type(error).__name__, str(error)) == ("Mine", "text")


@pytest.mark.parametrize("name", ["StopIteration", "GeneratorExit", "SystemExit", "MemoryError",
                                  "KeyboardInterrupt", "print", "no_such"])
def test_no_exception_steers_the_check(name):
    error = rebuilt(Raised((name, "BaseException"), ""))
    assert isinstance(error, Exception) and not isinstance(error, StopIteration | MemoryError)


OPERATIONS = [
    bool, len, iter, hash, repr, str, format, int, float, complex, bytes, operator.index, abs,
    operator.neg, operator.invert, round, next, reversed, dir, copy.copy, copy.deepcopy, vars,
    list, tuple, dict, set, sum, sorted, any, max, operator.not_,
    *[lambda x, _op=op: _op(x, 1) for op in (
        operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.add,
        operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod, pow,
        operator.matmul, operator.lshift, operator.rshift, operator.and_, operator.or_,
        operator.xor, operator.getitem, operator.contains, operator.delitem, operator.iadd)],
    *[lambda x, _op=op: _op(1, x) for op in (
        operator.eq, operator.lt, operator.add, operator.sub, operator.mul, operator.mod, pow,
        operator.matmul, isinstance, operator.xor)],
    lambda x: isinstance(x, int), lambda x: issubclass(x, object), lambda x: x.anything,
    lambda x: x.__class__, lambda x: "{}".format(x),  # noqa: UP032
    lambda x: x.__dict__, lambda x: hasattr(x, "y"), lambda x: f"{x}",
    lambda x: setattr(x, "y", 1), lambda x: delattr(x, "y"), lambda x: {x: 1}, lambda x: x in [1],
    lambda x: [1].index(x), lambda x: operator.setitem(x, 1, 1), lambda x: "%s" % x,  # noqa: UP031
    lambda x: x.__enter__(), lambda x: json.dumps(x), lambda x: x.name]


@pytest.mark.parametrize("kind", [Proxy, Function])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_whatever_else_is_done_with_a_students_name_raises(kind, operation):
    with pytest.raises(TypeError):
        operation(kind("layer", None))

"""Exceptions of a student's function, as the trusted side raises them."""

from __future__ import annotations

import builtins

import pytest

from grader.run.proxies import rebuilt
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

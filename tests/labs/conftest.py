"""Warm estimates: most checks of a lab ask for some, and the program's start is 2 s of each."""

from __future__ import annotations

import functools

import pytest

from labkit.check import measure
from pretrain_gpt import main
from warmranks import run_program


@functools.cache
def estimated(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]
              ) -> tuple[int, bytes, str]:
    """Replace measure's own program, as in tests/labkit/check/test_measure.py."""
    words = command[command.index(measure.program(())[-1]):]
    done = run_program(main, words, env=dict(environment), timeout=measure.SECONDS)
    return done.returncode, done.stdout.encode(), done.stderr


@pytest.fixture(autouse=True)
def warm_estimates(monkeypatch):
    monkeypatch.setattr(measure, "_run", estimated)

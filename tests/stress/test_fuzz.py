"""Hours of hostile input, if one has them: nothing but declared errors comes out of any reader."""

from __future__ import annotations

import os
import time

import pytest

from tests.fuzz.rounds import SLOWEST, Found, fuzz
from tests.fuzz.targets import TARGETS

MINUTES = float(os.environ.get("FUZZ_MINUTES", "10"))  # for all targets together
FIRST = int(os.environ.get("FUZZ_FIRST", str(time.time_ns() % 10**12)))  # seed
STRIDE = 50

pytestmark = [pytest.mark.stress, pytest.mark.timeout(120 * MINUTES + 60)]


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_declared_errors_comes_out(name):
    whole, seed = Found(), FIRST
    end = time.monotonic() + 60 * MINUTES / len(TARGETS)
    while time.monotonic() < end and not whole.bugs:
        result = fuzz(name, range(seed, seed + STRIDE))
        seed += STRIDE
        whole.inputs += result.inputs
        whole.refused += result.refused
        whole.slowest = max(whole.slowest, result.slowest)
        whole.bugs |= result.bugs
    print(f"{name}: {whole.inputs:,} inputs, {whole.refused:,} refused, the slowest took "
          f"{whole.slowest:.2f} of {SLOWEST:g} s; seeds {FIRST} to {seed}")
    assert whole.bugs == {}

"""The trainer takes the steps that megatron-core takes.

From the same weights and samples. What megatron-core did is kept in megatron_core.json;
`pytest -m oracle` runs it again where it is installed (see make_megatron_core.py).
"""

import itertools
import json
from pathlib import Path

import pytest

from .cases import CASES, STEPS, our_trace

FROZEN = json.loads(Path(__file__).with_name("megatron_core.json").read_text())


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradient_norms_are_megatron_core_s(case):
    ours, theirs = our_trace(case), FROZEN["traces"][case]
    for name in ("loss", "norm"):
        assert len(ours[name]) == STEPS
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=0), name


def test_the_comparison_sees_other_arithmetic():
    """Neither flags nor steps are without effect on the traces."""
    norms = [trace["norm"] for trace in FROZEN["traces"].values()]
    assert len({tuple(trace) for trace in norms}) == len(CASES)
    for trace in norms:
        for before, after in itertools.pairwise(trace):
            assert before != pytest.approx(after, rel=1e-4, abs=0)


@pytest.mark.oracle
def test_megatron_core_still_does_what_is_kept():
    from .make_megatron_core import traces

    for case, trace in traces()["traces"].items():
        for name, values in trace.items():
            assert values == pytest.approx(FROZEN["traces"][case][name], rel=1e-6)

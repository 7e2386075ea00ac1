"""The partitions of `lab plan` against the optima that OR-Tools proves.

What CP-SAT found is kept in ortools.json; `pytest -m oracle` runs it again where it is installed
(see make_ortools.py).
"""

import json
from pathlib import Path

import pytest

from cluster_planner import partition
from tests.cluster_planner.cases import INTEGER_CASES, integer_stages

FROZEN = json.loads(Path(__file__).with_name("ortools.json").read_text())


@pytest.mark.parametrize("seed", range(INTEGER_CASES))
def test_no_partition_is_faster_than_ours(seed):
    stages, optimum = integer_stages(seed), FROZEN[seed]
    made = partition.best(stages)
    assert partition.exact(stages)[0][0] == optimum["modeled"]
    assert made.time == optimum["simulated"]
    assert max(partition.lower_bounds(stages)) <= optimum["simulated"]


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(0, INTEGER_CASES, 4))
def test_or_tools_still_proves_these_optima(seed):
    pytest.importorskip("ortools")
    from tests.oracles.make_ortools import optimum

    stages = integer_stages(seed)
    assert FROZEN[seed] == {"modeled": optimum(stages, False), "simulated": optimum(stages, True)}

"""The search behind the check of lab 14's planner against what OR-Tools proves.

For each drawn cluster, plans.json keeps a time that no plan beats; `pytest -m oracle` proves one of
them again where OR-Tools is installed (see make_plans.py).
"""

import json
import re
from pathlib import Path

import pytest

from cluster_planner.case_model import step
from cluster_planner.case_planners import search
from labcore.workspace import CHECKOUT
from tests.oracles.make_plans import SLACK, case_of, faster

FROZEN = json.loads(Path(__file__).with_name("plans.json").read_text())


@pytest.mark.parametrize("name", [
    name if name.endswith(" 0") else pytest.param(name, marks=pytest.mark.stress)
    for name in FROZEN])
def test_the_search_is_within_the_slack_of_the_optimum(name):
    case, proven = case_of(name), FROZEN[name]
    assert proven <= step(case, search(case)).milliseconds <= proven / (1 - SLACK) * (1 + 1e-9)


def test_a_planner_that_passes_the_lab_is_within_10_percent_of_the_optimum():
    source = (CHECKOUT / "solutions" / "14_heterogeneous_clusters.py").read_text()
    (accepted,) = re.findall(r"time <= ([\d.]+) \* known", source)
    assert float(accepted) / (1 - SLACK) <= 1.1


@pytest.mark.oracle
def test_or_tools_still_proves_a_bound():
    pytest.importorskip("ortools")
    name = min(FROZEN, key=lambda one: sum(
        spec["gpus"] for spec in case_of(one)["kinds"].values()))
    assert faster(case_of(name), FROZEN[name]) is None

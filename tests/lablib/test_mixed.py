"""Lab 14's cases: what virtual GPUs measure, what a plan costs, and the figure of the front."""

import pytest

from cluster_planner.case_model import bound, step
from labcore.errors import LabError
from lablib import mixed
from virtualgpu.core.errors import VirtualGpuError

CLUSTER = "a100:4x2,a10:4x4"


@pytest.fixture(scope="module")
def case():
    return mixed.case(CLUSTER, "gpt2-small", global_batch=16)


def test_a_case_describes_the_model_and_every_kind_of_gpu(case):
    assert (case["layers"], case["global_batch"], case["replicas"]) == (12, 16, [1, 2, 4])
    fast, slow = case["kinds"]["a100"], case["kinds"]["a10"]
    assert (fast["gpus"], slow["gpus"], slow["per_node"]) == (8, 16, 4)
    assert sum(fast["layer"]) < sum(slow["layer"]) and fast["inside"] > slow["inside"]
    assert slow["inside"] > slow["network"] > 0 and fast["memory"] > 70
    parameters = 12 * 768**2 + 13 * 768  # of a layer: weights, biases, and norms
    assert case["state"] == pytest.approx(16 * parameters / 2**30, abs=1e-3)
    assert case["gradients"] == pytest.approx(2 * parameters / 1e9, abs=1e-4)


def test_longer_sequences_keep_more_and_take_longer(case):
    longer = mixed.case("a10:4x1", "gpt2-small", global_batch=16, sequence=2048)
    assert longer["activation"] > 1.9 * case["activation"]
    assert sum(longer["kinds"]["a10"]["layer"]) > 1.9 * sum(case["kinds"]["a10"]["layer"])


def test_a_plan_of_a_case_has_a_step_and_a_price(case):
    plan = {"replicas": 2, "stages": [["a10", 3], ["a100", 9]]}
    time = step(case, plan).milliseconds
    assert time > bound(case)
    # Two GPUs of each kind, at $5.12 and $2.04 per hour.
    assert mixed.dollars(plan, 1000.0, steps=3600) == pytest.approx(2 * (40.9657 + 16.288) / 8)


def test_unknown_names_are_errors():
    with pytest.raises(VirtualGpuError, match="nearest"):
        mixed.case("a1000:4x2", "gpt2-small", global_batch=16)
    with pytest.raises(LabError, match="gpt2-smal: no such model"):
        mixed.case("a10:4x2", "gpt2-smal", global_batch=16)


def test_a_case_is_printed_with_a_line_per_kind(case, capsys):
    mixed.show(case)
    text = capsys.readouterr().out
    assert "12 layers, 16 micro-batches" in text
    assert [line.split()[:2] for line in text.splitlines()[-2:]] == [["a100", "8"], ["a10", "16"]]


def test_the_front_is_drawn_with_its_names():
    drawing = mixed.front([("b", 200.0, 3.0), ("a", 100.0, 5.0), ("c", 300.0, 4.0)])
    assert "3 plans" in drawing.alt and "a: 100 ms and $5.00; b: 200 ms and $3.00" in drawing.alt
    assert b"<svg" in drawing.svg()

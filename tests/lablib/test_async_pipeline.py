"""A pipeline without a flush: which weights its passes meet, and whose gradients come of it."""

import pytest
import torch

from labcore.errors import LabError
from lablib import async_pipeline
from lablib.async_pipeline import (
    FLUSH,
    NAIVE,
    PIPEDREAM,
    POLICIES,
    TWO_BUFFERS,
    gradient_at,
    problem,
)

ROUNDING = 1e-12


@pytest.fixture(scope="module")
def runs():
    return {policy: async_pipeline.run(policy, stages=3, micro_batches=4, batches=3)
            for policy in POLICIES}


def apart(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("policy", [PIPEDREAM, TWO_BUFFERS, FLUSH])
def test_with_the_forward_s_version_every_gradient_is_that_of_some_weights(runs, policy):
    run = runs[policy]
    _, data = problem(3, 12)
    for k, used in enumerate(run.used):
        assert all(forward == backward for forward, backward in used)
        weights = [run.history[stage][version] for stage, (version, _) in enumerate(used)]
        assert apart(run.gradients[k], gradient_at(weights, *data[k])) < ROUNDING


def test_without_it_a_gradient_is_nobody_s():
    stashed, naive = (async_pipeline.run(policy, 3, 4, 1) for policy in (PIPEDREAM, NAIVE))
    distance, versions = async_pipeline.nearest(stashed, 3)
    assert distance < ROUNDING and versions == (1, 2, 3)
    assert naive.used[3] == [(1, 3), (2, 3), (3, 3)]
    assert async_pipeline.nearest(naive, 3)[0] > 0.01


@pytest.mark.parametrize(("policy", "versions"), [
    (NAIVE, [1, 1, 1, 1]), (PIPEDREAM, [4, 3, 2, 1]), (TWO_BUFFERS, [2, 2, 2, 2]),
    (FLUSH, [1, 1, 1, 1])])
def test_versions_activations_and_idle_time(policy, versions):
    run = async_pipeline.run(policy, stages=4, micro_batches=8, batches=3)
    assert run.versions == versions and run.live == [4, 3, 2, 1]
    m = 8 if policy == FLUSH else 24
    assert run.idle == pytest.approx(3 / (m + 3))


def test_two_buffers_lag_one_batch_behind_in_all_stages(runs):
    assert [used[0][0] for used in runs[TWO_BUFFERS].used] == [0] * 8 + [1] * 4
    assert all(len(set(used)) == 1 for used in runs[TWO_BUFFERS].used)


def test_with_a_flush_it_is_training_in_batches():
    run = async_pipeline.run(FLUSH, stages=3, micro_batches=4, batches=2)
    weights, data = problem(3, 8)
    for batch in range(2):
        parts = [gradient_at(weights, *data[4 * batch + k]) for k in range(4)]
        weights = [weight - async_pipeline.RATE * sum(part[stage] for part in parts) / 4
                   for stage, weight in enumerate(weights)]
    assert apart(weights, [history[-1] for history in run.history]) < ROUNDING


def test_a_run_is_the_same_every_time(runs):
    again = async_pipeline.run(NAIVE, stages=3, micro_batches=4, batches=3)
    assert again.losses == runs[NAIVE].losses
    assert torch.equal(again.history[0][-1], runs[NAIVE].history[0][-1])


@pytest.mark.parametrize(("settings", "said"), [
    ({"policy": "1f1b"}, "policy '1f1b': not one of naive, pipedream, 2bw, flush"),
    ({"policy": "flush", "batches": 0}, "0 batches"),
    ({"policy": "2bw", "stages": 5}, "use at least 5")])
def test_bad_input_is_named(settings, said):
    with pytest.raises(LabError, match=said):
        async_pipeline.run(**settings)

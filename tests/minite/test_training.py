"""A tiny model learns with every recipe, and does not without scales."""

from __future__ import annotations

import pytest

from lablib.eight_bits import resumed, train, without_scales
from minite import recipe

RECIPES = [recipe.DelayedScaling(amax_history_len=16),
           pytest.param(recipe.DelayedScaling(amax_compute_algo="most_recent", margin=1),
                        marks=pytest.mark.stress),
           recipe.Float8CurrentScaling(), recipe.Float8BlockScaling(), recipe.MXFP8BlockScaling()]


def final_loss(which: recipe.Recipe | None, **options) -> float:
    """Return the mean loss of the last 20 of 60 steps."""
    losses = train(which, **options).losses
    return sum(losses[-20:]) / 20


@pytest.fixture(scope="module")
def bf16() -> float:
    loss = final_loss(None)
    assert loss < 2  # of ln 128 = 4.9
    return loss


@pytest.mark.parametrize("which", RECIPES, ids=lambda which: type(which).__name__)
def test_final_loss_is_within_2_percent_of_bf16(which, bf16):
    assert final_loss(which) == pytest.approx(bf16, rel=0.02)


@pytest.mark.parametrize("format, micro_batches, learns", [
    (recipe.Format.HYBRID, 1, True), (recipe.Format.HYBRID, 1024, False),
    (recipe.Format.E4M3, 16, False)])
def test_without_scales_gradients_underflow_if_a_step_has_many_micro_batches(
        format, micro_batches, learns):
    loss = final_loss(recipe.DelayedScaling(format), before_step=without_scales,
                      micro_batches=micro_batches)
    assert loss < 2 if learns else loss > 4.8  # ln 128 = 4.85: it guesses


def test_delayed_scaling_does_not_mind_the_number_of_micro_batches(bf16):
    assert final_loss(recipe.DelayedScaling(amax_history_len=16),
                      micro_batches=1024) == pytest.approx(bf16, rel=0.02)


def test_a_checkpoint_without_extra_state_costs_a_step_s_gradients():
    delayed = recipe.DelayedScaling(amax_history_len=16)
    runs = [train(delayed, 14, resumed(10, extra), 1024) for extra in (True, False)]
    whole, lost = (run.gradient_norms for run in runs)
    assert whole[:10] == lost[:10]
    assert lost[10] < 0.1 * whole[10]  # all scales are 1, so most gradients underflow
    assert lost[11] > 0.5 * whole[11]

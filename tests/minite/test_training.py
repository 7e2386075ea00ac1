"""A tiny model learns with every recipe, and does not with a scale that nobody updates."""

from __future__ import annotations

import pytest

from lab.notebook.eight_bits import stuck_gradient_scale, train
from minite import recipe

RECIPES = [recipe.DelayedScaling(amax_history_len=16),
           pytest.param(recipe.DelayedScaling(amax_compute_algo="most_recent", margin=1),
                        marks=pytest.mark.stress),
           recipe.Float8CurrentScaling(), recipe.Float8BlockScaling(), recipe.MXFP8BlockScaling()]


def final_loss(which: recipe.Recipe | None, **options) -> float:
    """Return the mean loss of the last 20 of 60 steps."""
    losses = train(which, **options)[1]
    return sum(losses[-20:]) / 20


@pytest.fixture(scope="module")
def bf16() -> float:
    loss = final_loss(None)
    assert loss < 2  # of ln 128 = 4.9
    return loss


@pytest.mark.parametrize("which", RECIPES, ids=lambda which: type(which).__name__)
def test_final_loss_is_within_2_percent_of_bf16(which, bf16):
    assert final_loss(which) == pytest.approx(bf16, rel=0.02)


@pytest.mark.parametrize("scale, least", [(2.0**20, 100), (2.0**-4, 3)])
def test_e4m3_gradients_with_a_stale_scale_saturate_and_diverge_or_underflow_and_stall(
        scale, least):
    e4m3 = recipe.DelayedScaling(recipe.Format.E4M3)
    assert final_loss(e4m3, before_step=stuck_gradient_scale(scale)) > least


def test_e5m2_s_range_forgives_the_scale_that_saturates_e4m3(bf16):
    hybrid = final_loss(recipe.DelayedScaling(), before_step=stuck_gradient_scale(2.0**20))
    assert hybrid == pytest.approx(bf16, rel=0.02)

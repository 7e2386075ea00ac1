"""The flat buffer holds what autograd would have computed."""

import pytest
import torch

from minimegatron.gradients import Gradients
from minimegatron.model import Stage
from minimegatron.pipeline import run_schedule
from minimegatron.schedules import one_f_one_b
from minimegatron.timers import Timers

from .test_model import VOCABULARY, micro_batch


def reference(ctx, batches):
    stage = Stage(ctx, VOCABULARY, range(2))
    (sum(stage(None, batch) for batch in batches) / len(batches)).backward()
    return {name: p.grad for name, p in stage.named_parameters()}


def through_the_sink(ctx, batches, rounds=1, defer=False):
    stage = Stage(ctx, VOCABULARY, range(2))
    gradients = Gradients(list(stage.parameters()))
    gradients.defer_weights = defer
    for _ in range(rounds):
        gradients.begin()
        actions = one_f_one_b(1, len(batches))[0]
        run_schedule(actions, stage, batches, 1, Timers(ctx.device.now))
        gradients.drain()
        gradients.finish(ctx.grid.dp)
    return {name: p.main_grad for name, p in stage.named_parameters()}


@pytest.mark.parametrize("how", [{}, {"rounds": 2}, {"defer": True}],
                         ids=["plain", "a second step starts afresh", "weight gradients wait"])
def test_accumulated_gradients_equal_autograd_s(make_context, how):
    ctx = make_context("--global-batch-size 6")
    batches = [micro_batch() for _ in range(2)] + [micro_batch(size=3)]
    expected, got = reference(ctx, batches), through_the_sink(ctx, batches, **how)
    assert expected.keys() == got.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7)


def test_deferred_weight_gradients_are_not_there_before_the_drain(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    gradients = Gradients(list(stage.parameters()))
    gradients.defer_weights = True
    gradients.begin()
    stage(None, micro_batch()).backward()
    weight = stage.decoder.layers["0"].mlp.linear_fc1.weight
    assert weight.main_grad.abs().max() == 0
    gradients.drain()
    assert weight.main_grad.abs().max() > 0


def test_a_parameter_that_was_not_used_has_no_old_gradient(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    gradients = Gradients(list(stage.parameters()))
    gradients.flat.fill_(7)
    gradients.begin()
    gradients.finish(ctx.grid.dp)
    assert gradients.flat.abs().max() == 0

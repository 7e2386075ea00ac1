"""The flat buffer holds what autograd would have computed."""

import pytest
import torch

from minimegatron.logging.timers import Timers
from minimegatron.model.gpt import Stage
from minimegatron.parallel.ddp import Gradients
from minimegatron.parallel.pipeline import Pipeline
from pipeline_schedules import add_communication, one_f_one_b, zb_h1

from .test_model import VOCABULARY, micro_batch


def reference(ctx, batches):
    stage = Stage(ctx, VOCABULARY, range(2))
    (sum(stage(None, batch) for batch in batches) / len(batches)).backward()
    return {name: p.grad for name, p in stage.named_parameters()}


def through_the_sink(ctx, batches, rounds=1, schedule=one_f_one_b):
    stage = Stage(ctx, VOCABULARY, range(2))
    gradients = Gradients(ctx, list(stage.parameters()))
    program = add_communication(schedule(1, len(batches)))
    pipeline = Pipeline(ctx, [stage], program, gradients, Timers(ctx.device.now))
    for _ in range(rounds):
        gradients.begin()
        pipeline.train(batches)
        gradients.finish()
    return {name: p.main_grad for name, p in stage.named_parameters()}


@pytest.mark.parametrize("how", [{}, {"rounds": 2}, {"schedule": zb_h1}],
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
    gradients = Gradients(ctx, list(stage.parameters()))
    gradients.begin()
    with gradients.deferred("one"):
        stage(None, micro_batch()).backward()
    weight = stage.decoder.layers["0"].mlp.linear_fc1.weight
    assert weight.main_grad.abs().max() == 0
    with gradients.deferred("two"):
        stage(None, micro_batch()).backward()
    gradients.drain("one")
    one = weight.main_grad.clone()
    assert one.abs().max() > 0
    gradients.drain("two")
    torch.testing.assert_close(weight.main_grad, 2 * one)


def test_a_parameter_that_was_not_used_has_no_old_gradient(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    gradients = Gradients(ctx, list(stage.parameters()))
    gradients.flat.fill_(7)
    gradients.begin()
    gradients.finish()
    assert gradients.flat.abs().max() == 0

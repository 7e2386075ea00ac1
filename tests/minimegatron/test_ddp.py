"""The gradient buffer holds the gradients that autograd would have computed."""

import re
from types import SimpleNamespace

import pytest
import torch

from labcore.workspace import CODE
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import named_param_specs
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.parallel.pipeline import Pipeline
from minimegatron.timers import Timers
from pipeline_schedules import add_communication, one_f_one_b, zb_h1

from .test_model import VOCABULARY, micro_batch


def reference(ctx, batches):
    stage = Stage(ctx, VOCABULARY, range(2))
    tokens = sum(batch.loss_mask.numel() for batch in batches)
    (sum(stage(None, batch) for batch in batches) / tokens).backward()
    return {name: p.grad for name, p in stage.named_parameters()}


def accumulated(ctx, batches, rounds=1, schedule=one_f_one_b):
    stage = Stage(ctx, VOCABULARY, range(2))
    ddp = DistributedDataParallel(ctx, stage)
    program = add_communication(schedule(1, len(batches)))
    pipeline = Pipeline(ctx, [stage], program, ddp, Timers(ctx.device.now))
    for _ in range(rounds):
        ddp.zero_grad()
        pipeline.forward_backward(batches)
        ddp.finish_grad_sync()
    return {name: accumulator.main_grad for name, accumulator in ddp.accumulators.items()}


@pytest.mark.parametrize("how", [{}, {"rounds": 2}, {"schedule": zb_h1}],
                         ids=["plain", "two steps", "delayed weight gradients"])
def test_accumulated_gradients_equal_autograd_s(make_context, how):
    ctx = make_context("--global-batch-size 6")
    batches = [micro_batch() for _ in range(2)] + [micro_batch(size=3)]
    expected, got = reference(ctx, batches), accumulated(ctx, batches, **how)
    assert expected.keys() == got.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("groups", [("dp",), ("replicas", "ep"), ()])
def test_a_gradient_that_is_reduced_over_other_groups_is_refused(make_context, groups):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    named_param_specs(stage)["decoder.final_layernorm.weight"].reduced_over = groups
    with pytest.raises(NotImplementedError, match=r"^decoder\.final_layernorm\.weight: .*not over"):
        DistributedDataParallel(ctx, stage)


def test_delayed_weight_gradients_are_computed_on_request(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    ddp = DistributedDataParallel(ctx, stage)
    ddp.zero_grad()
    delayed = ddp.delayed
    with delayed.delay("one"):
        stage(None, micro_batch()).backward()
    main_grad = ddp.accumulators["decoder.layers.0.mlp.linear_fc1.weight"].main_grad
    assert main_grad.abs().max() == 0
    with delayed.delay("two"):
        stage(None, micro_batch()).backward()
    delayed.compute("one")
    one = main_grad.clone()
    assert one.abs().max() > 0
    delayed.compute("two")
    torch.testing.assert_close(main_grad, 2 * one)


def test_an_unused_parameter_s_gradient_is_zeroed(make_context):
    ctx = make_context()
    stage = Stage(ctx, VOCABULARY, range(2))
    ddp = DistributedDataParallel(ctx, stage)
    ddp.grad_buffer.fill_(7)
    ddp.zero_grad()
    ddp.finish_grad_sync()
    assert ddp.grad_buffer.abs().max() == 0


def test_the_recipe_for_a_frozen_layer_freezes_it(make_context):
    page = (CODE.parent / "docs" / "trainer.md").read_text()
    (recipe,) = re.findall(r"```python\n((?:(?!```).)*spec\.trained = False)", page, re.DOTALL)
    ctx = make_context("--num-layers 5")
    stage = Stage(ctx, VOCABULARY, range(2, 5))
    exec(recipe, {"self": SimpleNamespace(model=stage)})
    ddp = DistributedDataParallel(ctx, stage)
    frozen = stage.state_dict().keys() - ddp.params.keys()
    assert {name for name in frozen if not name.endswith("mask")} == {
        f"decoder.layers.3.{name}" for name, _ in stage.decoder.layers["3"].named_parameters()}

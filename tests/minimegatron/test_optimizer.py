"""AdamW, clipping and the learning rate, against torch and by hand."""

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.checkpoint.optimizer_state import learning_rate_state, load_learning_rate_state
from minimegatron.errors import UserError
from minimegatron.model import ops
from minimegatron.model.gpt import Stage
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.timers import Timers

from .test_arguments import GOOD
from .test_model import VOCABULARY


@pytest.mark.parametrize("clip", [0.0, 0.5, 1e6])
def test_updates_equal_torch_s_adamw(make_context, clip):
    ctx = make_context(f"--clip-grad {clip} --weight-decay 0.3")
    stage = Stage(ctx, VOCABULARY, range(2))
    theirs = {name: p.detach().clone().requires_grad_() for name, p in stage.named_parameters()}
    ddp = DistributedDataParallel(ctx, stage)
    optimizer = Optimizer(ctx, ddp)
    adamw = torch.optim.AdamW([
        {"params": [p for p in theirs.values() if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in theirs.values() if p.dim() == 1], "weight_decay": 0.0}], eps=1e-8)
    torch.manual_seed(0)
    for lr in (1e-2, 3e-3):
        for name, parameter in stage.named_parameters():
            theirs[name].grad = torch.randn(parameter.shape)
            ddp.accumulators[name].main_grad.copy_(theirs[name].grad)
        norm = optimizer.step(lr, Timers(ctx.device.now))
        expected = torch.nn.utils.clip_grad_norm_(theirs.values(), clip or float("inf"))
        torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.detach(), theirs[name].detach(), rtol=1e-5, atol=1e-6)


def learning_rate(flags):
    return LearningRate(parse_arguments((GOOD + flags).split(), {}))


def values(flags, *samples):
    rate = learning_rate("--lr 1e-3 --min-lr 1e-4 --global-batch-size 2 --lr-decay-iters 100 "
                         "--train-iters 500 " + flags)
    out = []
    for rate.samples in samples:
        out.append(rate.value())
    return out


def test_warm_up_then_linear_decay():
    flags = "--lr-decay-style linear --lr-warmup-fraction 0.1"
    assert values(flags, 0, 10, 20, 110, 200, 202) == pytest.approx(
        [0, 0.5e-3, 1e-3, 0.55e-3, 1e-4, 1e-4])


def test_cosine():
    assert values("--lr-decay-style cosine", 0, 50, 100, 200, 1000) == pytest.approx(
        [1e-3, 1e-4 + 0.9e-3 * (1 + 2 ** -0.5) / 2, 0.55e-3, 1e-4, 1e-4])


def test_constant():
    assert values("--lr-decay-style constant --lr-warmup-iters 10", 10, 20, 900) == pytest.approx(
        [0.5e-3, 1e-3, 1e-3])


def resumed(flags, saved):
    config = parse_arguments((GOOD + flags).split(), {})
    rate = LearningRate(config)
    load_learning_rate_state(config, rate, saved)
    return rate


def test_another_schedule_is_refused_unless_a_flag_decides():
    saved = learning_rate_state(learning_rate("--lr 2e-3")) | {"num_steps": 6}
    with pytest.raises(UserError, match=r"AnnealingLR: class input value .* for learning rate do"):
        resumed("--lr 1e-3", saved)
    ours = resumed("--lr 1e-3 --override-lr-scheduler", saved)
    assert (ours.settings["learning rate"], ours.samples) == (1e-3, 6)
    theirs = resumed("--lr 1e-3 --use-checkpoint-lr-scheduler", saved)
    assert theirs.settings["learning rate"] == 2e-3


@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 5001, 20_000_000])
def test_the_norm_of_millions_of_elements_is_exact_to_fp32(size):
    """20 million squares added up in a row would be 0.1% off."""
    flat = torch.empty(size).normal_(generator=torch.Generator().manual_seed(0))
    exact = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    assert float(ops.norm(flat)) == pytest.approx(exact, rel=1e-6)

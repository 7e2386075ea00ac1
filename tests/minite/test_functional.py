"""fp8_linear's output and gradients against the oracle; the state around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minite.functional import Quantizers, fp8_linear
from minite.recipes import (
    DelayedScaling,
    Float8BlockScaling,
    Float8CurrentScaling,
    Format,
    MXFP8BlockScaling,
)
from minite.state import BACKWARD, FORWARD, AutocastContext, LinearState, update_scales
from warmranks import run_ranks

from . import oracle, steps

RECIPES = {"tensorwise": Float8CurrentScaling(), "blockwise": Float8BlockScaling(),
           "blockwise, float32 scales": Float8BlockScaling(use_f32_scales=True),
           "mxfp8": MXFP8BlockScaling(), "mxfp8 hybrid": MXFP8BlockScaling(Format.HYBRID)}


def operands(m=128, k=256, n=128, dtype=torch.float32):
    torch.manual_seed(0)
    x, w, dy = torch.randn(m, k), torch.randn(n, k) / 16, torch.randn(m, n) * 1e-4
    return x.to(dtype).requires_grad_(), w.to(dtype).requires_grad_(), dy.to(dtype)


@pytest.mark.parametrize("name", RECIPES)
def test_output_and_gradients_equal_the_oracle(name):
    x, w, dy = operands()
    bias = torch.ones(128, requires_grad=True)
    y = fp8_linear(x, w, bias, Quantizers.of(RECIPES[name]))
    y.backward(dy)
    formats = ("e4m3", "e5m2" if RECIPES[name].fp8_format is Format.HYBRID else "e4m3")
    theirs = oracle.linear(x.detach().numpy(), w.detach().numpy(), dy.numpy(), name.split(" h")[0],
                           formats)
    for ours, expected in zip((y - 1, x.grad, w.grad), theirs, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-5,
                                   atol=2e-6 * np.abs(expected).max())
    assert torch.equal(bias.grad, dy.sum(0))


def test_rounding_costs_a_few_percent_and_no_less():
    x, w, dy = operands()
    y = fp8_linear(x, w, None, Quantizers.of(Float8CurrentScaling()))
    y.backward(dy)
    for ours, exact in ((y, x @ w.t()), (x.grad, dy @ w), (w.grad, dy.t() @ x)):
        error = ((ours - exact).norm() / exact.norm()).item()
        assert 0.01 < error < 0.1


@pytest.mark.parametrize("frozen", [0, 1])
def test_a_frozen_operand_has_no_gradient_and_the_other_one_s_is_the_same(frozen):
    *both, dy = operands()
    fp8_linear(*both, None, Quantizers.of(MXFP8BlockScaling())).backward(dy)
    *one, dy = operands()
    one[frozen].requires_grad_(False)
    fp8_linear(*one, None, Quantizers.of(MXFP8BlockScaling())).backward(dy)
    assert one[frozen].grad is None and torch.equal(one[1 - frozen].grad, both[1 - frozen].grad)


def test_dtypes_and_leading_dimensions():
    x, w, dy = operands(dtype=torch.bfloat16)
    y = fp8_linear(x.view(8, 16, 256), w, None, Quantizers.of(Float8CurrentScaling()))
    assert y.shape == (8, 16, 128) and y.dtype == torch.bfloat16
    y.backward(dy.view(8, 16, 128))
    assert x.grad.dtype == w.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("recipe, shape, text", [
    (Float8CurrentScaling(), (4, 32), "to be divisible by 8, not 4; the nearest that fit: 8"),
    (DelayedScaling(), (8, 40), "the last dimension to be divisible by 16, not 40.*32 and 48"),
    (MXFP8BlockScaling(), (32, 48), "divisible by 32, not 48"),
    (Float8BlockScaling(), (64, 128), "divisible by 128, not 64"),
])
def test_dimensions_that_do_not_fit(recipe, shape, text):
    with pytest.raises(ValueError, match=text):
        fp8_linear(torch.ones(shape), torch.ones(128, shape[1]), None,
                   LinearState().quantizers(AutocastContext(True, recipe=recipe)))


def test_a_quantizer_without_history_cannot_delay():
    with pytest.raises(TypeError, match=r"LinearState.quantizers"):
        fp8_linear(*operands()[:2], None, Quantizers.of(DelayedScaling()))


def test_delayed_scaling_uses_the_amax_of_earlier_steps():
    state, context = LinearState(), AutocastContext(True, recipe=DelayedScaling(margin=1,
                                                                                amax_history_len=2))
    scale, before = [1.0, 1.0], (0.0, 0.0)
    for factor in (1.0, 8.0, 1.0, 1.0, 1.0):
        x, w, dy = operands()
        x = (x.detach() * factor).requires_grad_()
        y = fp8_linear(x, w, None, state.quantizers(context))
        rounded = [oracle.per_tensor(t.detach().numpy(), "e4m3", np.float32(s))
                   for t, s in zip((x, w), scale, strict=True)]
        np.testing.assert_allclose(y.detach().numpy(), rounded[0] @ rounded[1].T, atol=1e-3)
        y.backward(dy)
        update_scales(FORWARD)
        update_scales(BACKWARD)
        amax = x.abs().max().item(), w.abs().max().item()
        scale = [448 / 2 / max(pair) for pair in zip(amax, before, strict=True)]
        before = amax
    saved = state.state_dict()
    assert saved["scale_bwd"].item() == pytest.approx(57344 / 2 / dy.abs().max().item())
    restored = LinearState()
    restored.load_state_dict(saved)
    assert all(torch.equal(saved[key], value) for key, value in restored.state_dict().items())


def test_a_longer_or_shorter_history_keeps_the_newest_steps():
    state = LinearState()
    state.quantizers(AutocastContext(True, recipe=DelayedScaling(amax_history_len=4)))
    scaling = state.scalings[FORWARD]
    scaling.amax_history[:] = torch.tensor([[0.0], [1], [2], [3]])
    for steps_kept, rows in ((2, [0, 3]), (4, [0, 0, 0, 3]), (1, [0]), (3, [0, 0, 0])):
        scaling.resize(steps_kept)
        assert scaling.amax_history[:, 0].tolist() == rows


def test_a_weight_is_quantized_once_per_step():
    state, recipe = LinearState(), Float8CurrentScaling()
    quantizer, weight = Quantizers.of(recipe).weight, operands()[1]
    first = state.weights(quantizer, weight, True)
    assert state.weights(quantizer, weight, False) is first
    assert state.weights(Quantizers.of(MXFP8BlockScaling()).weight, weight, False) is not first
    assert state.weights(quantizer, weight, True) is not first
    assert state.weights(quantizer, weight, None) is not first and not state.cached


def test_ranks_share_the_largest_amax():
    together, alone, pairs = (run_ranks(steps.scales, 4, *arguments)
                              for arguments in ((True, 4), (False, 4), (True, 2)))
    assert together == [448 / 4 / 2] * 4
    assert alone == pytest.approx([448 / rank / 2 for rank in (1, 2, 3, 4)])
    assert pairs == [448 / 2 / 2, 448 / 2 / 2, 448 / 4 / 2, 448 / 4 / 2]

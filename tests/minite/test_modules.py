"""Layers against plain PyTorch, and Transformer Engine's semantics around them."""

from __future__ import annotations

import importlib.util
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minite as te
from minite import recipe
from minite.functional import Quantizers, fp8_linear
from minite.state import BACKWARD, FORWARD


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def history(module, direction=FORWARD) -> torch.Tensor:
    return module.fp8_state.scalings[direction].amax_history


def test_state_dicts_go_to_torch_and_back_but_not_strictly():
    ours, theirs = te.Linear(32, 64), nn.Linear(32, 64)
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"_extra_state"'):
        theirs.load_state_dict(ours.state_dict())
    theirs.load_state_dict(ours.state_dict(), strict=False)
    x = torch.randn(8, 32)
    assert torch.equal(ours(x), theirs(x))
    again = te.Linear(32, 64)
    with pytest.raises(RuntimeError, match=r'Missing key.*"_extra_state"'):
        again.load_state_dict(theirs.state_dict())
    missing, unexpected = again.load_state_dict(theirs.state_dict(), strict=False)
    assert missing == ["_extra_state"] and not unexpected and torch.equal(again(x), ours(x))
    norm = te.LayerNorm(32)
    norm.load_state_dict(nn.LayerNorm(32).state_dict())


def test_the_amax_history_is_in_the_state_dict(tmp_path):
    module, x = te.LayerNormMLP(32, 64), torch.randn(8, 32)
    for _ in range(3):
        with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
            module(x).sum().backward()
    torch.save(module.state_dict(), tmp_path / "saved.pt")
    restored = te.LayerNormMLP(32, 64)
    restored.load_state_dict(torch.load(tmp_path / "saved.pt"))
    with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
        assert torch.equal(module(x), restored(x))
    assert torch.equal(history(module), history(restored)) and history(module).any()
    assert {name: len(tensor) for name, tensor in module.state_dict()["_extra_state"].items()} == {
        "amax_history_fwd": 4, "scale_fwd": 4, "amax_history_bwd": 4, "scale_bwd": 2}


def test_a_layer_in_fp8_is_fp8_linear():
    module, x = te.Linear(32, 64), torch.randn(8, 32)
    current = recipe.Float8CurrentScaling()
    with te.fp8_autocast(enabled=True, fp8_recipe=current):
        y = module(x)
    assert torch.equal(y, fp8_linear(x, module.weight, module.bias, Quantizers.of(current)))
    assert not torch.equal(y, module(x))


def test_under_torch_s_autocast_the_output_is_bfloat16():
    module = te.LayerNormMLP(128, 128)
    for which in (recipe.Float8CurrentScaling(), recipe.Float8BlockScaling()):
        with torch.autocast("cpu", torch.bfloat16), te.autocast(recipe=which):
            y = module(torch.randn(128, 128))
        assert y.dtype == torch.bfloat16
        y.float().sum().backward()
        assert module.fc1_weight.grad.dtype == torch.float32


def test_backward_outside_of_the_context_uses_the_forward_s_recipe():
    grads = []
    for inside in (True, False):
        module, x = te.Linear(32, 64), torch.ones(8, 32)
        nn.init.constant_(module.weight, 0.3)
        dy = torch.linspace(0, 1, 8 * 64).view(8, 64)
        with te.autocast(recipe=recipe.Float8CurrentScaling()):
            y = module(x)
            if inside:
                y.backward(dy)
        if not inside:
            with te.autocast(recipe=recipe.Float8CurrentScaling(recipe.Format.E4M3)):
                y.backward(dy)
        grads.append(module.weight.grad)
    assert torch.equal(*grads)
    assert not torch.equal(grads[0], dy.t() @ x)


def test_nested_contexts():
    (outer, inner, off), x = (te.Linear(32, 32) for _ in range(3)), torch.ones(8, 32)
    with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=3)):
        with te.autocast(recipe=recipe.DelayedScaling(margin=2)):
            inner(x)
        assert not history(inner)[-1].any()  # the outermost exit ends the step
        with te.autocast(enabled=False):
            assert torch.equal(off(x), F.linear(x, off.weight, off.bias))
        outer(x)
    assert len(history(outer)) == 3 and len(history(inner)) == 1024
    assert history(outer)[-1, 0] == history(inner)[-1, 0] == 1
    assert outer.fp8_state.scalings[FORWARD].scale[0] == 448
    assert inner.fp8_state.scalings[FORWARD].scale[0] == 448 / 4
    assert not off.fp8_state.scalings


def test_gradients_scales_change_at_the_end_of_the_backward_pass():
    first, last, x = te.Linear(32, 32), te.Linear(32, 32), torch.ones(8, 32)
    with te.autocast():
        y = last(first(x))
    y.sum().backward()
    for module in (first, last):
        assert history(module, BACKWARD)[-1].item() > 0 and not history(module, BACKWARD)[0].any()
    assert last.fp8_state.scalings[BACKWARD].scale == 57344


def test_inference_leaves_the_scales():
    module = te.Linear(32, 32)
    with torch.no_grad(), te.autocast():
        module(torch.full((8, 32), 3.0))
    assert not history(module).any()
    assert torch.equal(module.fp8_state.scalings[FORWARD].scale, torch.ones(2))


def test_calibration_sets_scales_and_computes_without_fp8():
    module, x = te.Linear(32, 32), torch.full((8, 32), 3.0)
    with torch.no_grad(), te.autocast(enabled=False, calibrating=True):
        assert torch.equal(module(x), F.linear(x, module.weight, module.bias))
    scale = module.fp8_state.scalings[FORWARD].scale
    torch.testing.assert_close(scale, 448 / torch.stack([x.max(), module.weight.abs().max()]))
    with te.autocast(enabled=False, calibrating=True, recipe=recipe.MXFP8BlockScaling()):
        module(x)  # nothing to record


def test_a_weight_is_reused_until_the_next_first_micro_batch():
    module, x = te.Linear(32, 32), torch.randn(8, 32)
    with te.autocast(recipe=recipe.Float8CurrentScaling()):
        first = module(x, is_first_microbatch=True)
        with torch.no_grad():
            module.weight.mul_(2)
        assert torch.equal(module(x, is_first_microbatch=False), first)
        assert not torch.equal(module(x, is_first_microbatch=True), first)


@pytest.mark.parametrize("depth", [1, 2])
def test_recomputation_repeats_the_forward_pass_and_counts_amax_once(depth):
    def nested(x):
        return te.checkpoint(module, x, use_reentrant=True) if depth == 2 else module(x)

    results = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        module = te.LayerNormMLP(32, 64)
        for scale in (1.0, 8.0, 2.0):
            x = (torch.randn(8, 32) * scale).requires_grad_()
            module.zero_grad()
            with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=2)):
                y = te.checkpoint(nested, x) if checkpointed else module(x)
            y.square().sum().backward()
        state = module.state_dict()
        results.append([x.grad, module.fc1_weight.grad, *state.pop("_extra_state").values()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_a_context_inside_of_a_checkpoint_ends_its_step_once():
    module, x = te.Linear(32, 32), torch.ones(8, 32, requires_grad=True)

    def function(x):
        with te.autocast(recipe=recipe.DelayedScaling(amax_history_len=4)):
            return module(x)

    te.checkpoint(function, x).sum().backward()
    assert history(module)[:, 0].tolist() == [0, 0, 0, 1]


def test_weights_in_fp8_only():
    torch.manual_seed(0)
    plain, x = te.Linear(32, 64), torch.randn(8, 32)
    master = plain.weight.detach()
    with te.quantized_model_init(recipe=recipe.Float8CurrentScaling()):
        module = te.Linear(32, 64, init_method=lambda weight: weight.copy_(master))
    assert module.weight.dtype == torch.float8_e4m3fn and master.dtype == torch.float32
    with te.autocast(recipe=recipe.Float8CurrentScaling()):
        y, expected = module(x), plain(x)
        assert torch.equal(y, expected)
        y.sum().backward()
        expected.sum().backward()
        assert module.weight.grad.dtype == torch.float32
        assert torch.equal(module.weight.grad, plain.weight.grad)
        module.set_weight("weight", master * 2)
        assert torch.equal(module(x) - module.bias, (y - module.bias) * 2)
    assert (module(x) - 2 * plain(x)).abs().max() < 0.2  # dequantized
    with pytest.raises(ValueError, match="weight was created in FP8 for Float8CurrentScaling"), \
            te.autocast(recipe=recipe.Float8BlockScaling()):
        module(x)


@pytest.mark.parametrize("which", [recipe.DelayedScaling(), recipe.Float8BlockScaling()])
def test_an_fp8_only_checkpoint_round_trips(which, tmp_path):
    with te.fp8_model_init(recipe=which):
        module, other = te.LayerNormMLP(128, 256), te.LayerNormMLP(128, 256)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt"))
    x = torch.randn(128, 128)
    with torch.no_grad(), te.autocast(recipe=which):
        assert torch.equal(module(x), other(x))


@pytest.mark.parametrize("wrong, text", [
    (lambda: te.LayerNormMLP(16, 16, activation="tanh"), "activation='tanh': expected one of gelu"),
    (lambda: te.TransformerLayer(30, 64, 4), "hidden_size=30: not divisible by"),
    (lambda: te.TransformerLayer(32, 64, 4, 3),
     "num_gqa_groups=3: does not divide num_attention_heads=4"),
    (lambda: te.DotProductAttention(2, 8)(*torch.ones(3, 4, 1, 2, 8), None, "padding"),
     "'padding' needs attention_mask"),
    (lambda: te.DotProductAttention(2, 8)(*torch.ones(3, 4, 1, 2, 8), None, "causl"),
     "attn_mask_type='causl': expected one of causal"),
])
def test_bad_arguments(wrong, text):
    with pytest.raises(ValueError, match=text):
        wrong()


def test_fp8_only_weights_that_cannot_be():
    with pytest.raises(ValueError, match=r"MXFP8BlockScaling.*use DelayedScaling"), \
            te.quantized_model_init(recipe=recipe.MXFP8BlockScaling()):
        pass
    with te.quantized_model_init(), pytest.raises(ValueError, match="fuse_qkv_params=True"):
        te.TransformerLayer(32, 64, 4)
    with te.quantized_model_init(), pytest.raises(ValueError, match="fc1_weight of shape"):
        te.LayerNormMLP(24, 64)


def test_a_weight_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"weight of shape \(36, 32\).*32 and 40"), te.autocast():
        te.Linear(32, 36)(torch.ones(8, 32))


def test_each_gemm_has_its_own_scales():
    module, x = te.LayerNormMLP(32, 64), torch.randn(8, 32)
    for value, weight in ((2.0, module.fc1_weight), (0.5, module.fc2_weight)):
        nn.init.constant_(weight, value)
    with te.autocast():
        y = module(x)
    y.sum().backward()
    scale = module.fp8_state.scalings[FORWARD].scale
    normed = F.layer_norm(x, (32,))
    assert scale[0] == pytest.approx((448 / normed.abs().max()).item(), rel=1e-5)
    assert scale.tolist()[1::2] == [448 / 2, 448 / 0.5]
    assert len(module.fp8_state.scalings[BACKWARD].scale.unique()) == 2


@pytest.mark.parametrize("gpu", [True, False])
def test_with_a_gpu_the_real_one_is_used(gpu, monkeypatch):
    fakes = {name: types.ModuleType(name) for name in (
        "transformer_engine", "transformer_engine.pytorch", "transformer_engine.common.recipe")}
    for name, fake in fakes.items():
        fake.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, fake)
    for name in te.__all__:
        setattr(fakes["transformer_engine.pytorch"], name, f"the real {name}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    spec = importlib.util.spec_from_file_location("minite_again", te.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.Linear == ("the real Linear" if gpu else te.Linear)
    assert again.recipe is (fakes["transformer_engine.common.recipe"] if gpu else recipe)

"""The loss scaler, 16-bit products, master weights, and what they cost in memory."""

import itertools
import random

import pytest
import torch

from minimegatron.arguments import parse_arguments
from minimegatron.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from minimegatron.errors import UserError
from minimegatron.model import linear as products
from minimegatron.model import ops
from minimegatron.model.gpt import Stage
from minimegatron.model.ops import flash_attention
from minimegatron.optim import LossScaler, Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.timers import Timers

from .layout_steps import held_bytes
from .scaler_rules import scales
from .test_arguments import GOOD
from .test_model import VOCABULARY


def walk(ctx, overflows):
    scaler, out = LossScaler(ctx), []
    for overflow in overflows:
        scaler.update(torch.tensor(overflow))
        out.append(ctx.read(scaler.scale))
    return out


def test_from_2_to_the_32_twelve_overflows_lead_to_2_to_the_21(make_context):
    """The first overflow is forgiven, each of the others halves: as measured in Megatron."""
    assert walk(make_context("--fp16"), [True] * 12 + [False])[-1] == 2.0**21


def test_the_window_doubles_and_only_then_forgives_again(make_context):
    ctx = make_context("--fp16 --initial-loss-scale 64 --loss-scale-window 3 --min-loss-scale 16")
    T, F = True, False
    steps = [T, F, F, T, F, T, F, F, F, T, T, T, T, T]
    assert walk(ctx, steps) == [64, 64, 64, 32, 32, 16, 16, 16, 32, 32, 16, 16, 16, 16]


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_of_overflows_follows_the_rules(make_context, seed):
    draw = random.Random(seed)
    window, patience = draw.randint(1, 4), draw.randint(1, 3)
    ctx = make_context(f"--fp16 --initial-loss-scale 1024 --loss-scale-window {window} "
                       f"--hysteresis {patience} --min-loss-scale 4")
    steps = [draw.random() < 0.4 for _ in range(60)]
    assert walk(ctx, steps) == scales(steps, 1024.0, 4.0, window, patience)


def test_a_fixed_scale_stays(make_context):
    assert walk(make_context("--fp16 --loss-scale 128"), [True, True, False]) == [128] * 3


def optimizer_with_gradient(make_context, flags, value=1.0):
    ctx = make_context(flags)
    stage = Stage(ctx, VOCABULARY, range(2))
    optimizer = Optimizer(ctx, DistributedDataParallel(ctx, stage))
    optimizer.ddp.grad_buffer.fill_(value)
    return ctx, optimizer


def test_a_step_that_overflowed_changes_the_scaler_and_nothing_else(make_context):
    ctx, optimizer = optimizer_with_gradient(make_context, "--fp16 --hysteresis 1")
    optimizer.step(1e-2, Timers(ctx.device.now))
    kept = [optimizer.param_buffer, optimizer.main_params, *optimizer.moments.values(),
            optimizer.steps]
    before = [tensor.clone() for tensor in kept]
    for bad in (float("inf"), float("nan"), -float("inf")):
        optimizer.ddp.grad_buffer.fill_(1.0)[17] = bad
        optimizer.step(1e-2, Timers(ctx.device.now))
        assert ctx.read(optimizer.advanced) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, kept, strict=True))
    assert ctx.read(optimizer.scaler.scale) == 2.0**29
    optimizer.ddp.grad_buffer.fill_(1.0)
    optimizer.step(1e-2, Timers(ctx.device.now))
    assert ctx.read(optimizer.advanced) == 1 and not torch.equal(before[0], optimizer.param_buffer)


@pytest.mark.parametrize("flags", ["--fp16 --loss-scale 1", "--bf16"])
def test_small_updates_add_up_in_the_main_weights(make_context, flags):
    """Each update is less than half a unit in the last place of a 16-bit 1.0."""
    ctx, optimizer = optimizer_with_gradient(make_context, flags + " --weight-decay 0")
    weight = optimizer.param_buffer
    norm_weight = next(p for name, p in optimizer.ddp.params.items()
                       if name.endswith("layernorm.weight"))
    for _ in range(40):
        optimizer.ddp.grad_buffer.fill_(1.0)
        optimizer.step(1e-4, Timers(ctx.device.now))
    ulp = torch.finfo(weight.dtype).eps
    assert (norm_weight == (1 - 40e-4 if ulp < 1e-3 else 1 - ulp / 2)).all() or (
        (norm_weight.float() - (1 - 40e-4)).abs().max() <= ulp / 2)
    assert (norm_weight < 1).all()


@pytest.mark.parametrize("flags, passes, update", [
    ("", 16, 16), ("--bf16", 18, 18), ("--fp16", 16, 20),
    ("--fp16 --accumulate-allreduce-grads-in-fp32", 18, 18)])
def test_bytes_per_parameter(make_context, flags, passes, update):
    """fp32 copies of 16-bit gradients exist from the update to `zero_grad`; shards are in
    test_precision_layouts."""
    ctx, optimizer = optimizer_with_gradient(make_context, flags)
    for _ in range(2):
        optimizer.zero_grad()
        assert held_bytes(optimizer) == pytest.approx(passes, rel=1e-4)
        optimizer.step(1e-2, Timers(ctx.device.now))
        assert held_bytes(optimizer) == pytest.approx(update, rel=1e-4)


@pytest.mark.parametrize("dtype, bound", [(torch.float16, 0.02), (torch.bfloat16, 0.15)])
def test_a_16_bit_product_on_the_cpu_has_fp32_sums_and_a_16_bit_result(dtype, bound, monkeypatch):
    torch.manual_seed(0)
    a, b = torch.randn(8, 512).to(dtype), torch.randn(512, 8).to(dtype)
    exact = a.double() @ b.double()
    assert torch.float16 in products.IN_FP32  # on any processor
    assert (products.matmul(a, b) - exact).abs().max() < bound
    monkeypatch.setattr(products, "IN_FP32", (torch.float16, torch.bfloat16))
    assert torch.equal(products.matmul(a, b), (a.float() @ b.float()).to(dtype))
    assert (products.matmul(a, b) - exact).abs().max() < bound


def test_an_fp16_product_on_the_cpu_has_the_range_of_fp16():
    ones = torch.full((1, 4), 200.0).half()
    assert products.matmul(ones, ones.t()).isinf().all()  # 160,000 is beyond fp16
    tiny = torch.full((1, 2), 1e-4).half()
    assert not products.matmul(tiny, tiny.t()).any()  # 2e-8 is less than half of 2^-24


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_softmax_is_computed_in_fp32(dtype):
    """So --attention-softmax-in-fp32 has no effect."""
    scores = (torch.randn(4, 64, 64) * 5).to(dtype)
    assert torch.equal(scores.softmax(-1), scores.float().softmax(-1).to(dtype))


@pytest.mark.parametrize("dtype, bound", [(torch.float16, 2e-3), (torch.bfloat16, 2e-2)])
def test_attention_in_16_bits_is_attention(dtype, bound):
    torch.manual_seed(1)
    query, key, value = (torch.randn(16, 4, 8) for _ in range(3))
    mask = ops.causal_mask(16, query.device, torch.float32)
    exact = ops.attention(query, key, value, mask, None, 0.0)
    got = ops.attention(*(x.to(dtype) for x in (query, key, value)), mask.to(dtype), None, 0.0)
    flash = flash_attention(*(x.to(dtype) for x in (query, key, value)), heads=2)
    for out in (got, flash):
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), exact, rtol=bound, atol=bound)


@pytest.mark.parametrize("flags, words", [
    ("--fp16 --bf16", ["--fp16", "--bf16", "nearest: --bf16 alone"]),
    ("--loss-scale 128", ["--loss-scale 128.0", "nearest: --fp16"]),
    ("--bf16 --initial-loss-scale 4", ["--initial-loss-scale 4.0", "nearest: --fp16"]),
    ("--hysteresis 3", ["--hysteresis 3", "--fp16"]),
    ("--fp16 --loss-scale -1", ["--loss-scale -1.0", "nearest: --loss-scale 1.0"]),
    ("--fp16 --loss-scale 1e39", ["--loss-scale 1e+39", "2**127"]),
    ("--fp16 --loss-scale 8 --loss-scale-window 5", ["--loss-scale-window 5", "--loss-scale 8.0"]),
    ("--fp16 --loss-scale-window 0", ["--loss-scale-window 0", "nearest: --loss-scale-window 1"]),
    ("--fp16 --hysteresis 0", ["--hysteresis 0", "nearest: --hysteresis 1"]),
    ("--fp16 --initial-loss-scale 2 --min-loss-scale 4",
     ["--min-loss-scale 4.0", "--initial-loss-scale 2.0", "nearest: --min-loss-scale 2.0"]),
    ("--accumulate-allreduce-grads-in-fp32", ["--accumulate-allreduce-grads-in-fp32", "leave it"]),
    ("--ddp-bucket-size 0", ["--ddp-bucket-size 0", "at least 1"]),
    ("--fp32-residual-connection", ["--fp32-residual-connection: a flag of Megatron-LM, but "]),
])
def test_what_makes_no_sense_is_refused_with_the_nearest_that_does(flags, words):
    with pytest.raises(UserError) as refused:
        parse_arguments((GOOD + flags).split(), {})
    assert all(word in str(refused.value) for word in words), refused.value


def test_a_state_of_another_precision_is_refused(make_context):
    states = {flags: optimizer_with_gradient(make_context, flags)[1]
              for flags in ("", "--bf16", "--fp16")}
    for saved, now in itertools.permutations(states, 2):
        with pytest.raises(UserError, match=r"another precision; nearest: .*--no-load-optim"):
            load_optimizer_state(states[now], optimizer_state(states[saved]))

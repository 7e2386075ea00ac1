"""Recomputation changes memory and nothing else; what it saves is what the formulas say."""

import shlex
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from minimegatron.arguments.parse import notes, parse_arguments
from minimegatron.context import MicroBatch
from minimegatron.dropout import Dropout
from minimegatron.errors import UserError
from minimegatron.formulas import Gpt, layer_activations, stage_activations
from minimegatron.model.gpt import Stage
from minimegatron.model.recompute import checkpoint, layer_groups
from minimegatron.optim import Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.training import Trainer

from .test_arguments import GOOD
from .thread_group import on_ranks

LAYERS, S, B, H, A, VOCABULARY = 5, 64, 2, 32, 4, 128
FLAGS = (f"--num-layers {LAYERS} --hidden-size {H} --num-attention-heads {A} --seq-length {S} "
         f"--max-position-embeddings {S} ")
FULL = "--recompute-granularity full --recompute-method "
MODES = {
    "selective": "--recompute-activations",
    "uniform": f"{FULL} uniform",
    "uniform 2": f"{FULL} uniform --recompute-num-layers 2",
    "uniform 5": f"{FULL} uniform --recompute-num-layers 5",
    "block 2": f"{FULL} block --recompute-num-layers 2",
}
TENSOR = {"tp": {}, "tp and sp": {"sequence_parallel": True}}
SPREAD = {"distribute_saved_activations": True}


def batch():
    text = torch.randint(VOCABULARY, (B, S + 1), generator=torch.Generator().manual_seed(3))
    return MicroBatch(text[:, :-1], text[:, 1:], torch.ones(B, S),
                      Dropout(1, 5, torch.tensor([7, 8])))


def trained(ctx, defer=False, frozen=False):
    """Loss, and every gradient, of two micro-batches."""
    stage = Stage(ctx, VOCABULARY, range(LAYERS))
    ddp = DistributedDataParallel(ctx, stage)
    delayed = ddp.delayed
    Optimizer(ctx, ddp)
    if frozen:
        stage.embedding.requires_grad_(False)
    ddp.zero_grad()
    losses = [stage(None, batch()) for _ in range(2)]
    with delayed.delay("later") if defer else nullcontext():
        for loss in losses:
            loss.backward()
    if defer:
        delayed.compute("later")
    return losses[0].detach(), ddp.grad_buffer


@pytest.mark.parametrize("defer", [False, True], ids=["at once", "weight gradients wait"])
@pytest.mark.parametrize("mode", MODES)
def test_loss_and_gradients_are_the_same_to_the_last_bit(make_context, mode, defer):
    plain, again = (trained(make_context(FLAGS + flags), defer) for flags in ("", MODES[mode]))
    assert torch.equal(plain[0], again[0])
    assert plain[1].abs().sum() > 0 and torch.equal(plain[1], again[1])


@pytest.mark.parametrize("mode, more", [
    *((mode, more) for mode in ("selective", "uniform 2") for more in TENSOR.values()),
    ("uniform 2", SPREAD)])
def test_the_same_on_tensor_parallel_ranks(make_context, mode, more):
    plain, again = make_context(FLAGS), make_context(FLAGS + MODES[mode])
    like = {key: value for key, value in more.items() if key not in SPREAD}
    plain = replace(plain, config=replace(plain.config, **like))
    again = replace(again, config=replace(again.config, **more))
    for one, other in zip(on_ranks(plain, 2, trained), on_ranks(again, 2, trained), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])


def test_layers_learn_behind_a_frozen_embedding(make_context):
    plain, again = (trained(make_context(FLAGS + flags), frozen=True)
                    for flags in ("", MODES["uniform"]))
    assert plain[1].abs().sum() > 0 and torch.equal(plain[1], again[1])


def saved_bytes(ctx):
    """Bytes that the layers of a middle stage keep for the backward pass, by unique storage."""
    stage = Stage(ctx, VOCABULARY, range(LAYERS), is_first=False, is_last=False)
    ours = {p.untyped_storage().data_ptr() for p in (*stage.parameters(), *stage.buffers())}
    storages = {}

    def pack(tensor):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    part = ctx.grid.tp.size if ctx.config.sequence_parallel else 1
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        stage(torch.ones(S // part, B, H).requires_grad_(), batch())
    return sum(kept.nbytes() for at, kept in storages.items() if at not in ours)


def expected(mode, t=1, sequence_parallel=False, **dropout):
    shape = Gpt(LAYERS, H, A, S, VOCABULARY)
    each = {"b": B, "t": t, "sequence_parallel": sequence_parallel, "bytes_each": 4, **dropout}
    kept = layer_activations(shape, recompute="selective" if mode == "selective" else None, **each)
    method, _, size = mode.partition(" ")
    return stage_activations(LAYERS, kept, layer_activations(shape, recompute="full", **each),
                             method if method in ("uniform", "block") else None, int(size or 1))


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_measured_activations_are_the_formulas(make_context, mode):
    measured = saved_bytes(make_context(FLAGS + MODES.get(mode, "")))
    # The rest are the norms' means and deviations: 2 numbers for each h.
    assert expected(mode) <= measured <= 1.01 * expected(mode)


@pytest.mark.parametrize("more", TENSOR.values(), ids=TENSOR)
@pytest.mark.parametrize("mode", ["none", "selective", "uniform", "block 2"])
def test_measured_activations_of_tensor_parallel_ranks(make_context, mode, more):
    ctx = make_context(FLAGS + MODES.get(mode, ""))
    ctx = replace(ctx, config=replace(ctx.config, **more))
    for measured in on_ranks(ctx, 2, saved_bytes):
        assert expected(mode, 2, **more) <= measured <= 1.02 * expected(mode, 2, **more)


def test_spread_inputs_cost_each_rank_its_part(make_context):
    ctx = make_context(FLAGS + MODES["uniform"])
    ctx = replace(ctx, config=replace(ctx.config, **SPREAD))
    assert on_ranks(ctx, 2, saved_bytes) == [expected("uniform") / 2] * 2


def test_measured_activations_without_dropout(make_context):
    measured = saved_bytes(make_context(
        FLAGS + "--attention-dropout 0 --hidden-dropout 0"))
    by_formula = expected("none", attention_dropout=False, hidden_dropout=False)
    # The batch has dropout, but p = 0 keeps no mask.
    assert by_formula <= measured <= 1.01 * by_formula


def test_flash_attention_keeps_what_selective_recomputation_keeps(make_context):
    measured = saved_bytes(make_context(FLAGS + "--use-flash-attn --attention-dropout 0"))
    assert measured == pytest.approx(expected("selective"), rel=0.02)


def test_evaluation_keeps_nothing(make_context):
    with torch.no_grad():
        assert saved_bytes(make_context(FLAGS + MODES["uniform"])) == 0


@pytest.mark.parametrize("mode", ["selective", "uniform 2", "block 2"])
def test_a_step_on_tensors_without_values(make_context, virtual_device, mode):
    ctx = replace(make_context(FLAGS + MODES[mode]), device=virtual_device)
    trainer = Trainer(ctx, VOCABULARY, started=0.0)
    text = torch.zeros(B, S, dtype=torch.int64, device="meta")
    loss, norm = trainer.step([MicroBatch(text, text, torch.ones(B, S, device="meta"),
                                          Dropout(1, 5, torch.zeros(B, device="meta",
                                                                    dtype=torch.int64)))])
    assert loss.is_meta and norm.is_meta
    assert virtual_device.now() > 0 and virtual_device.closing() == []


def test_the_forward_pass_runs_again_exactly_once():
    calls = []
    x = torch.ones(2, requires_grad=True)
    out = checkpoint(lambda x: calls.append(1) or x * x, x)
    out.sum().backward()
    assert len(calls) == 2 and x.grad.tolist() == [2, 2]


def test_groups_of_layers():
    assert layer_groups(5, "uniform", 2) == [(range(0, 2), True), (range(2, 4), True),
                                       (range(4, 5), True)]
    assert layer_groups(3, "block", 2) == [(range(0, 1), True), (range(1, 2), True),
                                     (range(2, 3), False)]
    assert layer_groups(0, "uniform", 2) == layer_groups(0, "block", 2) == []


OLD = {
    "--activations-checkpoint-method block --activations-checkpoint-num-layers 3":
        ("full", "block", 3),
    "--activations-checkpoint-method=uniform": ("full", "uniform", 1),
    "--recompute-activations": ("selective", None, 1),
}


@pytest.mark.parametrize("flags", OLD)
def test_names_of_2021_and_of_today(flags):
    argv = shlex.split(GOOD + flags)
    config = parse_arguments(argv, {})
    assert (config.recompute_granularity, config.recompute_method,
            config.recompute_num_layers) == OLD[flags]
    told = [note for note in notes(argv, config) if "today" in note]
    assert len(told) == flags.count("--activations-checkpoint")


REFUSED = {
    "--checkpoint-activations": "no longer valid, use --recompute-activations",
    "--recompute-granularity full": "needs --recompute-method; nearest: uniform",
    "--recompute-method block": "block is for --recompute-granularity full, which is missing",
    "--recompute-activations --recompute-method block": "for .*full, not selective",
    "--recompute-granularity selective --activations-checkpoint-method block": "leave the old",
    "--recompute-activations --activations-checkpoint-method block": "so it excludes full",
    "--recompute-num-layers 2": "--recompute-num-layers 2 is for --recompute-granularity full",
    f"{FULL} block --recompute-num-layers 5": "5: a stage has 4 layers; nearest: 4",
    f"{FULL} block --recompute-num-layers 0": "--recompute-num-layers 0: must be at least 1",
    f"{FULL} blocks": "invalid choice: 'blocks'",
    f"{FULL} block --distribute-saved-activations": "needs tensor-parallel ranks",
    "--distribute-saved-activations": "is for --recompute-granularity full",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_refused(flags):
    with pytest.raises(UserError, match=REFUSED[flags]):
        parse_arguments(shlex.split(GOOD + flags), {})


def test_what_sequence_parallelism_divides_is_not_divided_again():
    with pytest.raises(UserError, match="are sharded already; leave it out"):
        parse_arguments(shlex.split(
            f"{GOOD} {FULL} block --distribute-saved-activations --sequence-parallel "
            "--tensor-model-parallel-size 2"), {"WORLD_SIZE": "2"})

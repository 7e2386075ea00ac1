"""A layer divided among ranks is the layer: values and gradients, for any number of ranks."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from minimegatron.context import MicroBatch
from minimegatron.dropout import Dropout
from minimegatron.grid import Group
from minimegatron.model.gpt import Stage
from minimegatron.model.linear import DelayedWeightGrads, GradAccumulator
from minimegatron.model.parameters import named_param_specs, partition_of
from minimegatron.model.sequence_parallel import GatherFromSequenceParallelRegionLinear
from minimegatron.model.tensor_parallel import (
    VocabParallelCrossEntropy,
    vocab_parallel_cross_entropy,
)
from minimegatron.optim import Optimizer
from minimegatron.parallel.ddp import DistributedDataParallel
from minimegatron.report.step_log import num_zeros, params_norm

from .thread_group import on_ranks

SIX_HEADS = ("--num-attention-heads 6 --hidden-size 48 --kv-channels 5 --ffn-hidden-size 60 "
             "--seq-length 30 ")
VOCABULARY = 120
MODES = {"tensor": "", "tensor and sequence": "--sequence-parallel "}


def batch(length=30):
    generator = torch.Generator().manual_seed(3)
    text = torch.randint(VOCABULARY, (2, length + 1), generator=generator)
    return MicroBatch(text[:, :-1], text[:, 1:], torch.ones(2, length),
                      Dropout(1, 5, torch.tensor([7, 8])))


def with_sequence(ctx, sequence):
    """The parser turns sequence parallelism off on one rank; the threads are more."""
    return replace(ctx, config=replace(ctx.config, sequence_parallel=bool(sequence)))


def trained(ctx, defer=False):
    """Loss, and every gradient as the optimizer would see it, by name."""
    stage = Stage(ctx, VOCABULARY, range(2))
    ddp = DistributedDataParallel(ctx, stage)
    delayed = ddp.delayed
    optimizer = Optimizer(ctx, ddp)
    ddp.zero_grad()
    loss = stage(None, batch()) / batch().labels.numel()
    with delayed.delay("later") if defer else nullcontext():
        loss.backward()
    if defer:
        delayed.compute("later")
    ddp.finish_grad_sync()
    optimizer.all_reduce_replicated_grads()
    return loss.detach(), {name: (spec.accumulator.main_grad.clone(), spec.partition_dim)
                           for name, spec in ddp.specs.items()}


@pytest.mark.parametrize("size", [2, 3, 6])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("defer", [False, True], ids=["at once", "weight gradients wait"])
def test_loss_and_every_gradient_equal_the_whole_model_s(make_context, size, mode, defer):
    ctx = make_context(SIX_HEADS)
    loss, expected = trained(ctx)
    ranks = on_ranks(with_sequence(ctx, MODES[mode]), size, lambda own: trained(own, defer))
    for index, (got, gradients) in enumerate(ranks):
        torch.testing.assert_close(got, loss, rtol=1e-6, atol=0)
        assert gradients.keys() == expected.keys()
        for name, (gradient, split) in gradients.items():
            whole = partition_of(expected[name][0], split, Group(tuple(range(size)), index, None))
            torch.testing.assert_close(gradient, whole, rtol=1e-4, atol=1e-7, msg=name)


def test_a_delayed_weight_gradient_gathers_its_input_when_it_is_computed():
    """With sequence parallelism, a rank keeps its own positions from B to W, not all of them."""
    gathered, delayed = [], DelayedWeightGrads()
    tp = SimpleNamespace(all_gather=lambda x: gathered.append(x) or torch.cat([x, x]),
                         reduce_scatter=lambda x: x[:len(x) // 2])
    accumulator = GradAccumulator(delayed, torch.zeros(4, 3), [], False)
    y = GatherFromSequenceParallelRegionLinear.apply(
        torch.ones(2, 1, 3, requires_grad=True), torch.ones(4, 3), None, accumulator, tp)
    with delayed.delay("W"):
        y.sum().backward()
    assert len(gathered) == 1  # in the forward pass
    delayed.compute("W")
    assert len(gathered) == 2 and (accumulator.main_grad == 4).all()


def test_weights_are_slices_of_the_whole_model_s(make_context):
    ctx = make_context(SIX_HEADS)
    stage = Stage(ctx, VOCABULARY, range(2))
    whole, specs = dict(stage.named_parameters()), named_param_specs(stage)
    shards = on_ranks(ctx, 3, lambda own: dict(Stage(own, VOCABULARY, range(2)).named_parameters()))
    for name, weight in whole.items():
        split = specs[name].partition_dim
        pieces = [shard[name].detach() for shard in shards]
        together = pieces[0] if split is None else torch.cat(pieces, split)
        assert torch.equal(together, weight.detach()), name
    assert specs["decoder.layers.1.mlp.linear_fc2.weight"].partition_dim == 1
    assert specs["decoder.layers.1.mlp.linear_fc2.bias"].partition_dim is None
    assert specs["embedding.word_embeddings.weight"].partition_dim == 0


def test_one_rank_s_loss_on_a_gpu_is_the_cpu_s_and_needs_no_copy_of_the_logits():
    torch.manual_seed(1)
    values, labels, weights = torch.randn(4, 3, 10), torch.randint(10, (4, 3)), torch.rand(4, 3)
    alone, given = Group((0,), 0, None), values.clone().requires_grad_()
    expected = vocab_parallel_cross_entropy(given, labels, alone)
    (expected * weights).sum().backward()
    leaf = values.clone().requires_grad_()
    logits = leaf * 1  # as the output matrix made them
    loss = VocabParallelCrossEntropy.apply(logits, labels, alone)
    assert loss.grad_fn.saved_tensors[0].data_ptr() == logits.data_ptr()
    (loss * weights).sum().backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(leaf.grad, given.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["usual logits", "exp would overflow"])
@pytest.mark.parametrize("size", [2, 5])
def test_the_divided_loss_is_the_cross_entropy(make_context, scale, size):
    torch.manual_seed(1)
    logits = (torch.randn(4, 3, 10) * scale).requires_grad_()
    labels = torch.tensor([[0, 1, 9], [4, 5, 6], [2, 2, 2], [7, 8, 3]])  # every rank owns some
    weights = torch.rand(4, 3)  # tokens do not count alike
    expected = F.cross_entropy(logits.view(12, 10), labels.view(12), reduction="none").view(4, 3)
    (expected * weights).sum().backward()

    def work(own):
        part = partition_of(logits.detach(), 2, own.grid.tp).clone().requires_grad_()
        loss = vocab_parallel_cross_entropy(part, labels, own.grid.tp)
        (loss * weights).sum().backward()
        return loss.detach(), part.grad

    ranks = on_ranks(make_context(), size, work)
    for loss, _ in ranks:
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=1e-6)
    together = torch.cat([gradient for _, gradient in ranks], 2)
    torch.testing.assert_close(together, logits.grad, rtol=1e-5, atol=1e-7)


def test_between_layers_a_rank_keeps_its_part_of_the_sequence_only(make_context):
    """Memory saved for backward shrinks too: a column-parallel linear keeps its shard of x."""
    kept = {}
    for mode, flag in MODES.items():
        def work(own):
            stage = Stage(own, VOCABULARY, range(1))
            DistributedDataParallel(own, stage)
            sizes = []
            with torch.autograd.graph.saved_tensors_hooks(
                    lambda t: sizes.append(tuple(t.shape)) or t, lambda t: t):
                stage(None, batch()).backward()
            return sizes
        kept[mode] = on_ranks(with_sequence(make_context(SIX_HEADS), flag), 3, work)[0]
    assert (30, 2, 48) in kept["tensor"]
    assert (30, 2, 48) not in kept["tensor and sequence"]
    assert (10, 2, 48) in kept["tensor and sequence"]


def test_every_parameter_is_counted_once(make_context):
    ctx = make_context(SIX_HEADS)
    stage = Stage(ctx, VOCABULARY, range(2))
    weights = torch.cat([p.detach().flatten() for p in stage.parameters()])

    def work(own):
        ddp = DistributedDataParallel(own, Stage(own, VOCABULARY, range(2)))
        optimizer = Optimizer(own, ddp)
        return params_norm(optimizer), num_zeros(optimizer)

    for norm, zeros in on_ranks(ctx, 3, work):
        torch.testing.assert_close(norm, torch.linalg.vector_norm(weights), rtol=1e-6, atol=0)
        assert zeros.item() == weights.numel()  # no gradient yet


def test_a_tied_copy_is_trained_but_not_counted(make_context):
    ctx = make_context()
    last = Stage(ctx, VOCABULARY, range(1, 2), is_first=False)
    ddp = DistributedDataParallel(ctx, last)
    names = list(ddp.params)
    assert names[0] == "embedding.word_embeddings.weight"
    assert not any("position" in name for name in names)
    tied = last.embedding.word_embeddings.weight.numel()
    ranges = Optimizer(ctx, ddp).ranges
    assert ranges[0].params == ranges[0].grads == slice(0, tied)
    assert [part.counted for part in ranges] == [False, True, True, True]

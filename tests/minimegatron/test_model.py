"""The model is the GPT of the papers, and the same however it is cut."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from minimegatron.context import MicroBatch
from minimegatron.dropout import Dropout
from minimegatron.model.gpt import Stage

VOCABULARY = 128
NO_DROPOUT = "--hidden-dropout 0 --attention-dropout 0 "


def micro_batch(dropout=None, size=2, length=32):
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(VOCABULARY, (size, length + 1), generator=generator)
    return MicroBatch(text[:, :-1], text[:, 1:], torch.ones(size, length), dropout)


def plain_gpt(weights, tokens, labels, heads):
    """The same function in batch-first torch, written apart from the model."""
    layers = 1 + max(int(name.split(".")[2]) for name in weights if ".layers." in name)
    x = weights["embedding.word_embeddings.weight"][tokens]
    x = x + weights["embedding.position_embeddings.weight"][:tokens.shape[1]]
    b, s, h = x.shape

    def norm(x, name):
        return F.layer_norm(x, (h,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    for layer in range(layers):
        at = f"decoder.layers.{layer}"
        qkv = linear(norm(x, f"{at}.input_layernorm"), f"{at}.self_attention.linear_qkv")
        q, k, v = qkv.view(b, s, heads, 3, h // heads).permute(3, 0, 2, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(h // heads)
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h)
        x = x + linear(mixed, f"{at}.self_attention.linear_proj")
        wide = linear(norm(x, f"{at}.pre_mlp_layernorm"), f"{at}.mlp.linear_fc1")
        x = x + linear(F.gelu(wide, approximate="tanh"), f"{at}.mlp.linear_fc2")
    logits = norm(x, "decoder.final_layernorm") @ weights["embedding.word_embeddings.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


@pytest.mark.parametrize("attention", ["", "--use-flash-attn"])
def test_loss_and_gradients_equal_a_plain_gpt(make_context, attention):
    stage = Stage(make_context(NO_DROPOUT + attention), VOCABULARY, range(2))
    batch = micro_batch()
    weights = {name: p.detach().clone().requires_grad_() for name, p in stage.named_parameters()}
    expected = plain_gpt(weights, batch.tokens, batch.labels, heads=4)
    expected.backward()
    loss = stage(None, batch) / batch.labels.numel()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("cuts", [(0, 1, 2), (0, 0, 2), (0, 2, 2)])
def test_stages_in_a_row_are_the_whole_model(make_context, cuts):
    ctx = make_context()
    batch = micro_batch(Dropout(1, 5, torch.tensor([7, 8])))
    whole = Stage(ctx, VOCABULARY, range(2))(None, batch)
    x = None
    for stage_number, (first, last) in enumerate(itertools.pairwise(cuts)):
        stage = Stage(ctx, VOCABULARY, range(first, last), is_first=x is None,
                      is_last=stage_number == 1)
        x = stage(x, batch)
    torch.testing.assert_close(x, whole, rtol=0, atol=0)


def test_the_future_does_not_reach_the_past(make_context):
    stage = Stage(make_context(NO_DROPOUT), VOCABULARY, range(2))

    def logits(tokens):
        batch = MicroBatch(tokens, tokens, torch.ones(tokens.shape), None)
        x = stage.embedding(batch)
        for layer in stage.decoder.layers.values():
            x = layer(x, batch)
        return stage.logits(x)

    tokens = micro_batch().tokens
    changed = tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % VOCABULARY
    before, after = logits(tokens), logits(changed)
    assert torch.equal(before[:20], after[:20])
    assert not torch.equal(before[20:], after[20:])


def test_masked_tokens_do_not_count(make_context):
    stage = Stage(make_context(NO_DROPOUT), VOCABULARY, range(2))
    batch = micro_batch()
    batch.loss_mask[:, 10:] = 0
    labels = batch.labels.clone()
    labels[:, 10:] = 0
    same = MicroBatch(batch.tokens, labels, batch.loss_mask, None)
    assert torch.equal(stage(None, batch), stage(None, same))


def test_initial_weights(make_context):
    stage = Stage(make_context("--num-layers 8 --hidden-size 128"), 512, range(8))
    weights = dict(stage.named_parameters())
    assert weights["embedding.word_embeddings.weight"].std().item() == pytest.approx(0.02, rel=0.02)
    projections = weights["decoder.layers.3.mlp.linear_fc2.weight"]
    assert projections.std().item() == pytest.approx(0.02 / 4, rel=0.02)
    assert weights["decoder.layers.3.mlp.linear_fc2.bias"].abs().max() == 0
    assert weights["decoder.final_layernorm.weight"].min() == 1
    assert not torch.equal(weights["decoder.layers.0.mlp.linear_fc1.weight"],
                           weights["decoder.layers.1.mlp.linear_fc1.weight"])

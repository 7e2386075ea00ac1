"""The modern block: its values, its layouts, its formulas, and its errors."""

import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from minimegatron.arguments import parse_arguments
from minimegatron.arguments.flag import STATE, names_affecting
from minimegatron.arguments.parse import parse_estimate
from minimegatron.arguments.presets import PRESETS
from minimegatron.arguments.table import ModernBlock
from minimegatron.checkpoint.load import check_same_model
from minimegatron.context import MicroBatch
from minimegatron.errors import UserError
from minimegatron.formulas import layer_activations, parameters, stage_parameters, step_flops
from minimegatron.model.gpt import Stage, TransformerLayer
from minimegatron.report.throughput import shape_of
from warmranks import run_ranks

from . import layout_steps
from .test_model import NO_DROPOUT, VOCABULARY, micro_batch
from .thread_group import on_ranks

GROUPED, FLASH = "--group-query-attention --num-query-groups 2", "--use-flash-attn"
ROPE, RMS = "--position-embedding-type rope", "--normalization RMSNorm"
UNTIED, NO_BIAS = "--untie-embeddings-and-output-weights", "--disable-bias-linear"
QK = "--qk-layernorm"
LLAMA = f"{GROUPED} {FLASH} --attention-dropout 0 --swiglu {UNTIED} {NO_BIAS} {ROPE} {RMS}"
FEATURES = {
    "grouped": GROUPED, "grouped flash": f"{GROUPED} {FLASH} --attention-dropout 0",
    "squared ReLU": "--squared-relu", "SwiGLU": "--swiglu --ffn-hidden-size 48", "untied": UNTIED,
    "no biases": NO_BIAS, "rope": f"{ROPE} --rotary-percent 0.5 --rotary-base 500", "RMSNorm": RMS,
    "with biases": f"{GROUPED} --swiglu --ffn-hidden-size 48 {UNTIED}", "Llama": LLAMA,
    "Qwen3": f"{LLAMA} {QK}", "normalized heads": QK,
    "Nemotron": f"{GROUPED} --squared-relu {UNTIED} {NO_BIAS} {ROPE} --rotary-percent 0.5",
}
TP2, SP, PP2 = ("--tensor-model-parallel-size 2", "--sequence-parallel",
                "--pipeline-model-parallel-size 2")
FULL = "--recompute-granularity full --recompute-method uniform"
LAYOUTS = (TP2, f"{TP2} {SP} --recompute-activations", f"{TP2} {SP} --tp-comm-overlap",
           PP2, f"{PP2} --schedule zb-h1 {FULL}",
           "--use-distributed-optimizer --overlap-grad-reduce --ddp-bucket-size 1001")
PARITY = ("with biases", "Qwen3", "Nemotron")  # together, every feature


@pytest.fixture(scope="module")
def results():
    """{(ranks, layout, feature): the ranks' results} of a few steps, on two ranks and on one."""
    collected = {}
    for ranks, layouts in ((1, ("",)), (2, LAYOUTS)):
        keys = [(ranks, layout, name) for layout in layouts for name in PARITY]
        cases = [f"{layout} {FEATURES[name]}" for _, layout, name in keys]
        lines = run_ranks(layout_steps.run, ranks, 2, cases, backend=None, timeout=300)
        collected |= dict(zip(keys, zip(*lines, strict=True), strict=True))
    return collected


@pytest.mark.slow
@pytest.mark.parametrize("name", PARITY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_equals_one_process(results, layout, name):
    """Losses, gradient norms, and parameter norms of two steps, with dropout."""
    (alone,), ranks = results[1, "", name], results[2, layout, name]
    for rank in ranks:
        for quantity in ("norm", "params", *(("loss", "validation") if rank["last"] else ())):
            assert rank[quantity] == pytest.approx(alone[quantity], rel=1e-5, abs=0), quantity


def plain_model(weights, batch, flags, heads):
    """The same function in batch-first torch, written apart from the model."""
    h = weights["embedding.word_embeddings.weight"].shape[1]
    d, groups = h // heads, 2 if GROUPED in flags else heads
    s = batch.tokens.shape[1]
    x = weights["embedding.word_embeddings.weight"][batch.tokens]
    if ROPE not in flags:
        x = x + weights["embedding.position_embeddings.weight"][:s]

    def norm(x, name):
        if RMS in flags:
            return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weights[f"{name}.weight"]
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(x, name):
        out = x @ weights[f"{name}.weight"].T
        return out if NO_BIAS in flags else out + weights[f"{name}.bias"]

    def rotate(x):  # [b, heads, s, d]: pairs of channels as complex numbers
        turned = d // 2 if "0.5" in flags else d
        base = 500 if "500" in flags else 10_000
        angles = torch.arange(s)[:, None] * base ** (-2 * torch.arange(turned // 2) / turned)
        pairs = torch.complex(x[..., :turned // 2], x[..., turned // 2:turned])
        pairs = pairs * torch.polar(torch.ones(()), angles)
        return torch.cat([pairs.real, pairs.imag, x[..., turned:]], -1)

    def activation(x):
        if "--swiglu" in flags:
            gate, up = x.chunk(2, -1)
            return gate * gate.sigmoid() * up
        return x.clamp(min=0) ** 2 if "--squared-relu" in flags else F.gelu(x, approximate="tanh")

    for layer in range(2):
        at = f"decoder.layers.{layer}"
        qkv = linear(norm(x, f"{at}.input_layernorm"), f"{at}.self_attention.linear_qkv")
        by_group = qkv.unflatten(-1, (groups, -1, d)).permute(2, 3, 0, 1, 4)
        q = by_group[:, :-2].flatten(0, 1).transpose(0, 1)  # [b, heads, s, d]
        k, v = (by_group[:, at].repeat_interleave(heads // groups, 0).transpose(0, 1)
                for at in (-2, -1))
        if QK in flags:
            q, k = (norm(x, f"{at}.self_attention.{name}_layernorm")
                    for x, name in ((q, "q"), (k, "k")))
        if ROPE in flags:
            q, k = rotate(q), rotate(k)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(d)
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{at}.self_attention.linear_proj")
        wide = linear(norm(x, f"{at}.pre_mlp_layernorm"), f"{at}.mlp.linear_fc1")
        x = x + linear(activation(wide), f"{at}.mlp.linear_fc2")
    words = "output_layer" if UNTIED in flags else "embedding.word_embeddings"
    logits = norm(x, "decoder.final_layernorm") @ weights[f"{words}.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())


@pytest.mark.parametrize("flags", FEATURES.values(), ids=FEATURES)
def test_loss_and_gradients_equal_a_plain_model(make_context, flags):
    stage, batch = Stage(make_context(NO_DROPOUT + flags), VOCABULARY, range(2)), micro_batch()
    weights = {name: p.detach().clone().requires_grad_() for name, p in stage.named_parameters()}
    expected = plain_model(weights, batch, flags, heads=4)
    expected.backward()
    loss = stage(None, batch) / batch.labels.numel()
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, weights[name].grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("flags", ["", ROPE], ids=["learned positions", "rotary positions"])
def test_a_shard_of_the_sequence_knows_where_it_starts(make_context, flags):
    """The second half, alone, has the embeddings, queries, and keys that it has in the whole."""
    ctx = make_context(f"{flags} {NO_DROPOUT}")
    stage = Stage(ctx, VOCABULARY, range(1))
    batch = micro_batch(None)
    start = batch.tokens.shape[1] // 2
    half = MicroBatch(batch.tokens[:, start:], None, None, None, first_position=start)
    layer = stage.decoder.layers["0"]
    with torch.no_grad():
        whole, part = stage.embedding(batch), stage.embedding(half)
        assert torch.equal(part, whole[start:])
        expected = layer.self_attention.query_key_value(whole, 0)
        for one, other in zip(layer.self_attention.query_key_value(part, start), expected,
                              strict=True):
            torch.testing.assert_close(one, other[start:])


@pytest.mark.parametrize("flags", FEATURES.values(), ids=FEATURES)
def test_parameters_equal_the_formula(make_context, flags):
    ctx = make_context(flags)
    gpt = shape_of(ctx.config, 512)
    for t in (1, 2):
        for first, last in ((True, True), (True, False), (False, False), (False, True)):
            def count(own, first=first, last=last):
                stage = Stage(own, 512, range(3), first, last)
                return sum(p.numel() for p in stage.parameters())

            counts = [count(ctx)] if t == 1 else on_ranks(ctx, t, count)
            assert counts == [stage_parameters(gpt, 3, t, first, last)] * t


@pytest.mark.parametrize("flags", FEATURES.values(), ids=FEATURES)
def test_flops_equal_the_formula(make_context, flags):
    config = make_context(f"{NO_DROPOUT} {flags}".replace(FLASH, ""))
    stage = Stage(config, VOCABULARY, range(2))
    with FlopCounterMode(display=False) as counter:
        stage(None, micro_batch()).backward()
    assert counter.get_total_flops() == step_flops(shape_of(config.config, VOCABULARY), 2)


@pytest.mark.parametrize("flags", FEATURES.values(), ids=FEATURES)
def test_saved_activations_equal_the_formula(make_context, virtual_device, flags):
    """On a virtual GPU in fp16, whose kernels save what fused kernels save."""
    ctx = make_context(f"--fp16 --hidden-size 512 --seq-length 512 --max-position-embeddings 512 "
                       f"--num-attention-heads 8 {NO_DROPOUT} {flags}")
    ctx = type(ctx)(ctx.config, ctx.grid, virtual_device)
    mask = None if ctx.config.use_flash_attn else torch.empty(
        1, 512, 512, dtype=torch.float16, device=virtual_device.torch_device)
    layer = TransformerLayer(ctx, 1, mask)
    x = torch.empty(512, 2, 512, dtype=torch.float16, device=virtual_device.torch_device,
                    requires_grad=True)
    before = virtual_device.gpu.memory.live
    out = layer(x, MicroBatch(None, None, None, None))
    saved = virtual_device.gpu.memory.live - before  # the output stands for the input
    expected = layer_activations(
        shape_of(ctx.config, VOCABULARY), 2, attention_dropout=False, hidden_dropout=False,
        recompute="selective" if ctx.config.use_flash_attn else None)
    assert out.shape == x.shape and saved == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", names_affecting(STATE, ModernBlock))
def test_a_checkpoint_of_another_block_is_refused(make_context, name):
    ctx = make_context()
    other = {**asdict(ctx.config), name: "another", "padded_vocab_size": 512}
    with pytest.raises(UserError, match=rf"{name} value from checkpoint \(another\) is not"):
        check_same_model(ctx, other, 512, Path("file"))


def test_a_checkpoint_from_before_these_flags_is_gpt_2_s(make_context):
    old = {**asdict(make_context().config), "padded_vocab_size": 512}
    for name in names_affecting(STATE, ModernBlock):
        del old[name]
    check_same_model(make_context(), old, 512, Path("file"))
    with pytest.raises(UserError, match=r"swiglu value from checkpoint \(False\) is not equal to"):
        check_same_model(make_context("--swiglu --ffn-hidden-size 128"), old, 512, Path("file"))


BASE = ("--num-layers 2 --hidden-size 64 --num-attention-heads 8 --seq-length 16 "
        "--max-position-embeddings 16 --micro-batch-size 2 --lr 1e-3 --train-iters 1 "
        "--data-path x --vocab-file x --merge-file x ")


@pytest.mark.parametrize("flags, message", [
    ("--group-query-attention --num-query-groups 3",
     "--num-query-groups 3: --num-attention-heads 8 is not divisible by it; nearest: "
     "--num-query-groups 2"),
    ("--group-query-attention --num-query-groups 2 --tensor-model-parallel-size 4",
     "--num-query-groups 2 is not divisible by --tensor-model-parallel-size 4; nearest: "
     "--num-query-groups 4"),
    ("--group-query-attention --num-query-groups 16", "nearest: --num-query-groups 8"),
    ("--group-query-attention --num-query-groups 0", "must be at least 1"),
    ("--group-query-attention --num-attention-heads 6 --kv-channels 8 "
     "--tensor-model-parallel-size 4", "--num-attention-heads 6 is not divisible by "
     "--tensor-model-parallel-size 4; nearest: 4"),
    ("--num-query-groups 2", "--num-query-groups 2 belongs to --group-query-attention"),
    ("--squared-relu --swiglu", "--squared-relu with --swiglu: an MLP has one activation"),
    ("--swiglu --hidden-size 16", "nearest: --ffn-hidden-size 42"),
    ("--rotary-base 500", "--rotary-base 500 belongs to --position-embedding-type rope"),
    ("--rotary-percent 0.5", "--rotary-percent 0.5 belongs to --position-embedding-type rope"),
    (f"{ROPE} --rotary-percent 0", "--rotary-percent 0.0: must be greater than 0"),
    (f"{ROPE} --rotary-percent 1.5", "--rotary-percent 1.5: must be at most 1; nearest: "
     "--rotary-percent 1.0"),
    (f"{ROPE} --rotary-percent 0.4", "--rotary-percent 0.4 of the 8 channels of a head is 3, which "
     "must be an even number; nearest: --rotary-percent 0.25"),
    (f"{ROPE} --kv-channels 1", "nearest: --kv-channels 2"),
    (f"{ROPE} --rotary-base 0", "--rotary-base 0: must be at least 1"),
    ("--position-embedding-type relative", "invalid choice: 'relative'"),
    ("--normalization BatchNorm", "invalid choice: 'BatchNorm'"),
])
def test_a_wrong_flag_is_named_with_the_nearest_valid_value(flags, message):
    with pytest.raises(UserError) as error:
        parse_arguments((BASE + flags).split(), {"RANK": "0", "WORLD_SIZE": "4"})
    assert message in str(error.value)


def test_the_default_width_of_swiglu_is_megatron_s():
    config = parse_arguments((BASE + "--swiglu --hidden-size 4096").split(), {})
    assert config.ffn_hidden_size == 10880  # Llama's 11008 is a multiple of 256


TRAIN = "--micro-batch-size 1 --lr 1 --train-iters 1 --data-path d --vocab-file v --merge-file m"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_parameters_of_the_released_weights(name):
    preset = PRESETS[name]
    config = parse_arguments(f"{TRAIN} --preset {name}".split(), {})
    assert parameters(shape_of(config, preset.vocabulary)) == preset.parameters
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
    assert f"| `{name}` | {preset.parameters:,} |" in page


def test_flags_override_a_preset_wherever_they_stand():
    config = parse_arguments(f"--num-layers 4 {TRAIN} --preset=llama3-8b".split(), {})
    assert (config.num_layers, config.hidden_size, config.preset) == (4, 4096, "llama3-8b")
    estimate = "--estimate --preset llama3-8b --device virtual:h100 --micro-batch-size 1"
    for more, vocabulary in (("", 128256), ("--vocab-size 32000", 32000)):
        assert parse_estimate(f"{estimate} {more}".split()).vocab_size == vocabulary


@pytest.mark.parametrize("words, message", [
    ("--preset lama3", "invalid choice: 'lama3'.*'llama3-8b'"),
    ("--preset gpt2-xl --preset=llama3-8b", "given 2 times.*nearest: --preset"),
    ("--preset", "expected one argument")])
def test_a_preset_that_is_none_is_refused(words, message):
    with pytest.raises(UserError, match=message):
        parse_arguments([*TRAIN.split(), *words.split()], {})

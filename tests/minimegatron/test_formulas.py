"""The formulas give the published tables, and what the model and the schedules really have."""

import pytest

from minimegatron.formulas import (
    Gpt,
    bubble_fraction,
    bubble_overhead,
    head_activations,
    in_flight,
    layer_activations,
    parameters,
    stage_activations,
    stage_parameters,
    state_bytes,
    step_flops,
    teraflops,
    training_days,
    zero_bytes,
)
from minimegatron.model.gpt import Stage
from pipeline_schedules import gpipe, interleaved, one_f_one_b, peak_live, simulate
from virtualgpu.core.cards import find

from .thread_group import on_ranks

# Narayanan et al. 2021, table 1: s 2048, V 51200, A100; TFLOP/s with full recomputation.
# (billions of parameters, h, l, a, GPUs, batch, TFLOP/s, % of the peak, seconds of a step)
NARAYANAN = [
    (1.7, 2304, 24, 24, 32, 512, 137, 44, 3.53), (3.6, 3072, 30, 32, 64, 512, 138, 44, 3.70),
    (7.5, 4096, 36, 32, 128, 512, 142, 46, 3.70), (18.4, 6144, 40, 48, 256, 1024, 135, 43, 9.40),
    (39.1, 8192, 48, 64, 512, 1536, 138, 44, 14.45),
    (76.1, 10240, 60, 80, 1024, 1792, 140, 45, 16.06),
    (145.6, 12288, 80, 96, 1536, 2304, 148, 47, 24.82),
    (310.1, 16384, 96, 128, 1920, 2160, 155, 50, 37.61),
    (529.6, 20480, 105, 128, 2520, 2520, 163, 52, 54.08),
    (1008.0, 25600, 128, 160, 3072, 3072, 163, 52, 102.63),
]
# Korthikanti et al. 2022: tables 3 and 5, tensor-parallel size 8.
# (a, h, l, GPUs, batch, seconds with sequence parallelism and selective recomputation, MFU, HFU)
KORTHIKANTI = {
    "22B": (64, 6144, 48, 8, 4, 1.10, 41.7, 43.9),
    "175B": (96, 12288, 96, 64, 64, 13.75, 51.4, 52.8),
    "530B": (128, 20480, 105, 280, 280, 37.83, 56.0, 57.0),
    "1T": (160, 25600, 128, 512, 512, 71.49, 56.3, 57.0),
}
# MiB of a layer: nothing, TP, TP+SP, TP+selective, TP+SP+selective, full; b is 4 for 22B, else 1.
MIB = {
    "22B": (6752, 1264, 844, 624, 204, 96), "175B": (2736, 552, 342, 312, 102, 48),
    "530B": (3920, 840, 490, 520, 170, 80), "1T": (4900, 1050, 612.5, 650, 212.5, 100),
}


def shape(h, layers, a):
    return Gpt(layers, h, a, sequence=2048, vocabulary=51200)


@pytest.mark.parametrize("row", NARAYANAN, ids=lambda row: f"{row[0]}B")
def test_narayanan_s_table_1(row):
    billions, h, layers, a, devices, batch, rate, percent, seconds = row
    gpt = shape(h, layers, a)
    assert round(parameters(gpt) / 1e9, 1) == billions
    got = teraflops(step_flops(gpt, batch, recompute="full"), seconds, devices)
    assert got == pytest.approx(rate, rel=0.002)
    assert 100 * got / find("a100").tflops["bf16"] == pytest.approx(percent, abs=0.6)


def test_the_closed_forms():
    gpt, batch = shape(12288, 96, 96), 1536
    s, h, layers, v = 2048, 12288, 96, 51200
    assert parameters(gpt) == pytest.approx(
        12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h)) + 2 * h, rel=1e-14)
    unit = batch * s * layers * h**2
    assert step_flops(gpt, batch) == pytest.approx(
        72 * unit * (1 + s / (6 * h) + v / (12 * layers * h)), rel=1e-14)
    assert step_flops(gpt, batch, "full") == pytest.approx(
        96 * unit * (1 + s / (6 * h) + v / (16 * layers * h)), rel=1e-14)
    assert step_flops(gpt, batch, causal=True) == pytest.approx(
        72 * unit * (1 + s / (12 * h) + v / (12 * layers * h)), rel=1e-14)
    # GPT-3 on 1024 GPUs: about 32 s at 138 TFLOP/s (Megatron-LM's README).
    assert step_flops(gpt, batch, "full") / 1024 / 138e12 == pytest.approx(31.92, abs=0.05)


# Published parameters. The Llamas' are those of their files. Nemotron-4's are without embeddings,
# from Parmar et al. 2024 (arXiv:2402.16819) and NVIDIA 2024 (arXiv:2406.11704).
# {model: (l, h, a, G, f, V, gated, parameters)}
MODERN = {
    "Llama 2 7B": (32, 4096, 32, 32, 11008, 32000, True, 6_738_415_616),
    "Llama 2 70B": (80, 8192, 64, 8, 28672, 32000, True, 68_976_648_192),
    "Llama 3 8B": (32, 4096, 32, 8, 14336, 128256, True, 8_030_261_248),
    "Nemotron-4 15B": (32, 6144, 48, 8, 24576, 256000, False, 12.5e9),
    "Nemotron-4 340B": (96, 18432, 96, 8, 73728, 256000, False, 331.6e9),
}


@pytest.mark.parametrize("model", MODERN)
def test_published_parameters_of_modern_models(model):
    layers, h, a, groups, ffn, vocabulary, gated, published = MODERN[model]
    gpt = Gpt(layers, h, a, 4096, vocabulary, ffn, positions=0, query_groups=groups, gated=gated,
              tied=False, biases=False, norm_biases=not gated)
    if gated:
        assert parameters(gpt) == published
    else:
        assert round(parameters(gpt) - 2 * vocabulary * h, -8) == published


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_korthikanti_s_utilization(model):
    a, h, layers, devices, batch, seconds, mfu, hfu = KORTHIKANTI[model]
    gpt = shape(h, layers, a)
    own = step_flops(gpt, batch)
    # The paper counts all three passes of core attention again, not the forward pass alone.
    again = 3 * (step_flops(gpt, batch, "selective") - own)
    for flops, expected in ((own, mfu), (own + again, hfu)):
        rate = teraflops(flops, seconds, devices)
        assert 100 * rate / find("a100").tflops["bf16"] == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("model", KORTHIKANTI)
def test_korthikanti_s_activations(model):
    a, h, layers, *_ = KORTHIKANTI[model]
    gpt, b = shape(h, layers, a), 4 if model == "22B" else 1
    got = [layer_activations(gpt, b, t, sp, recompute) / 2**20 for t, sp, recompute in (
        (1, False, None), (8, False, None), (8, True, None), (8, False, "selective"),
        (8, True, "selective"), (8, False, "full"))]
    assert got == [pytest.approx(value, rel=1e-3) for value in MIB[model]]


def test_the_closed_form_of_activations():
    gpt, sbh = shape(6144, 48, 64), 2048 * 4 * 6144
    assert layer_activations(gpt, 4) == pytest.approx(sbh * (34 + 5 * 64 * 2048 / 6144), rel=1e-14)
    assert layer_activations(gpt, 4, t=8, recompute="selective") == sbh * (10 + 24 / 8)
    assert head_activations(gpt, 4, 8, sequence_parallel=True) == pytest.approx(
        4 * sbh / 8 * (1 + 51200 / 6144))


def test_a_stage_s_activations():
    assert stage_activations(6, 34, 2) == 6 * 34
    assert stage_activations(6, 34, 2, "uniform", 1) == 6 * 2
    assert stage_activations(7, 34, 2, "uniform", 3) == 3 * 2
    assert stage_activations(6, 34, 2, "block", 2) == 2 * 2 + 4 * 34
    assert stage_activations(1, 34, 2, "block", 2) == 2


# The unusual widths: nothing may rest on ffn = 4h or heads x width = h.
WIDTHS = ("", "--kv-channels 6 --ffn-hidden-size 48 --max-position-embeddings 40")


@pytest.mark.parametrize("flags", WIDTHS, ids=["usual", "unusual"])
@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("first, last", [(True, True), (True, False), (False, False),
                                         (False, True)])
def test_a_stage_has_so_many_parameters(make_context, flags, t, first, last):
    ctx = make_context(flags)
    config = ctx.config
    gpt = Gpt(2, config.hidden_size, config.num_attention_heads, config.seq_length, 512,
              config.ffn_hidden_size, config.kv_channels, config.max_position_embeddings)

    def count(own):
        stage = Stage(own, 512, range(3), first, last)
        return sum(p.numel() for p in stage.parameters())

    counts = [count(ctx)] if t == 1 else on_ranks(ctx, t, count)
    assert counts == [stage_parameters(gpt, 3, t, first, last)] * t


@pytest.mark.parametrize("p, m", [(1, 3), (2, 2), (4, 2), (4, 8), (3, 12)])
def test_micro_batches_in_flight_are_the_schedule_s(p, m):
    assert peak_live(one_f_one_b(p, m)) == [in_flight(p, stage, m) for stage in range(p)]
    assert peak_live(gpipe(p, m)) == [m] * p


@pytest.mark.parametrize("p, m, v", [(2, 2, 2), (2, 8, 2), (4, 4, 3), (4, 8, 2), (4, 16, 3)])
def test_chunks_in_flight_are_the_schedule_s(p, m, v):
    assert peak_live(interleaved(p, m, v)) == [
        pytest.approx(v * in_flight(p, stage, m, v)) for stage in range(p)]


def test_korthikanti_s_interleaving_factor():
    assert in_flight(8, 0, 64, 3) == pytest.approx(8 * (1 + 7 / (8 * 3)))


@pytest.mark.parametrize("p, m, v", [(1, 4, 1), (4, 8, 1), (4, 8, 2), (2, 4, 3), (8, 64, 3)])
def test_the_bubble_is_the_simulator_s(p, m, v):
    timeline = simulate(interleaved(p, m, v))
    assert bubble_fraction(p, m, v) == pytest.approx(timeline.bubble_fraction)
    assert bubble_overhead(p, m, v) == pytest.approx(timeline.bubble_overhead)


def test_the_two_measures_of_a_bubble_differ():
    assert bubble_fraction(4, 8) == 3 / 11 and bubble_overhead(4, 8) == 3 / 8


@pytest.mark.parametrize("precision, plain, of_8", [
    ("fp16", 20, 4 + 16 / 8), ("bf16", 18, 6 + 12 / 8), ("fp32", 16, 8 + 8 / 8)])
def test_bytes_of_a_parameter(precision, plain, of_8):
    assert state_bytes(precision, 8).total == plain
    assert state_bytes(precision, 8, zero_stage=1).total == of_8


# Rajbhandari et al. 2020, figure 1 and table 1. (billions, N): GB of stages 0 to 3.
ZERO = {
    (7.5, 64): (120, 31.4, 16.6, 1.9), (7.5, 4): (120, 52.5, 41.25, 30), (7.5, 16): (
        120, 35.6, 21.6, 7.5), (7.5, 256): (120, 30.4, 15.4, 0.47),
    (7.5, 1024): (120, 30.1, 15.1, 0.12), (128, 64): (2048, 536, 284, 32),
    (1000, 1024): (16000, 4012, 2014, 15.6),
}


@pytest.mark.parametrize("model", ZERO, ids=str)
def test_zero_s_memory(model):
    billions, replicas = model
    for stage, gigabytes in enumerate(ZERO[model]):
        got = billions * zero_bytes(stage, replicas).total
        assert got == pytest.approx(gigabytes, rel=0.005, abs=0.05), stage


def test_training_days():
    """Narayanan et al. 2021, section 5.1: GPT-3 in 34 days, a trillion parameters in 84."""
    assert round(training_days(175e9, 300e9, 1024, 140)) == 34
    assert round(training_days(1008e9, 450e9, 3072, 163)) == 84
    assert training_days(1e9, 1e9, 1, 1, recompute=False) == pytest.approx(6e6 / 86400)

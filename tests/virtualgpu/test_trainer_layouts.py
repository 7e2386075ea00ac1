"""The trainer on virtual cards in its layouts: times, memory and bubbles are what theory says."""

import pytest

from layout_estimator.requests import estimate
from minimegatron.formulas import bubble_fraction, state_bytes
from pipeline_schedules import Durations, load, simulate
from warmranks import run_ranks

from . import trainer_steps
from .trainer_steps import EVEN

pytestmark = pytest.mark.slow

ON = "--device virtual "
TP2, SP = f"{ON}--tensor-model-parallel-size 2", "--sequence-parallel"
PP2, PP4 = (f"{ON}--pipeline-model-parallel-size {stages}" for stages in (2, 4))
CHUNK = "--num-layers-per-virtual-pipeline-stage 1"
FULL = "--recompute-granularity full --recompute-method uniform"
ZERO, OVERLAP = "--use-distributed-optimizer", "--overlap-grad-reduce"
CROSSED = "nodes=a,b,a,b"
MIXED = "cards=v100,v100,a100,a100"
DECLARED = "nodes=a,a,b,b network=ethernet:5gbit"  # two of four GPUs on a node

ALONE = [f"{ON}{how}".strip() for how in (
    "", "--recompute-activations", FULL, "--fp16", "cards=a100 --bf16", "cards=a100",
    "--micro-batch-size 4", "--micro-batch-size 1", "--use-flash-attn --attention-dropout 0",
    "cards=h100 --bf16 --fp8-format hybrid --fp8-amax-history-len 4 --micro-batch-size 4",
    "cards=l4 --bf16 --fp8-format hybrid --fp8-recipe tensorwise --schedule zb-h1",
    f"cards=b200 --bf16 --fp8-format e4m3 --fp8-recipe mxfp8 {FULL}",
    "cards=b200 --bf16 --fp8-format e4m3 --fp8-recipe blockwise --no-fp8-wgrad")]
SCHEDULES = {  # flags: chunks of a stage
    f"{PP4} even --schedule gpipe": 1, f"{PP4} even": 1,
    f"{PP4} even --num-layers 8 {CHUNK}": 2, f"{PP4} even --schedule zb-h1": 1}
FOUR = [
    ON.strip(), f"{ON}{OVERLAP}", f"{ON}{ZERO}", f"{ON}{CROSSED}", f"{TP2} {SP}",
    f"{PP2} {ZERO} {OVERLAP} --fp16", f"{PP2} --tensor-model-parallel-size 2 --schedule zb-h1",
    f"{ON}{MIXED}", f"{ON}cards=a100,a100,a100,a100", f"{PP2} {DECLARED}",
    f"{ON}{DECLARED}", f"{ON}{MIXED} {DECLARED}",
    *SCHEDULES]
MORE = [  # what no case of FOUR has
    f"{PP4} --balance 0-2-2-0", f"{PP4} --global-batch-size 2", f"{PP2} {CHUNK} {OVERLAP}",
    f"{ON}{ZERO} {OVERLAP} --bf16 cards=h200,h200,h100,h100 nodes=a,a,b,b",
    f"{PP4} cards=t4,l4,a10,rtx3090 nodes=a,b,c,d --virtual-network ethernet:10gbit",
    f"{PP2} --tensor-model-parallel-size 2 {SP} {ZERO}"]
SOAK = [
    f"{TP2} {SP} --bf16 cards=a100,a100,a100,a100", f"{PP4} --schedule zb-h1 {FULL}",
    f"{PP2} --tensor-model-parallel-size 2 {CROSSED}",
    TP2, f"{TP2} {FULL}", f"{PP4} --num-layers 8 {CHUNK} {FULL}",
    f"{PP4} --schedule gpipe --recompute-activations"]


def run(ranks, cases):
    """{case: the ranks' results, in order}."""
    steps = 2 if ranks == 1 else 3  # in the first of several ranks' steps, some begin late
    result = run_ranks(trainer_steps.run, ranks, steps, cases, backend=None, timeout=300)
    return dict(zip(cases, zip(*result, strict=True), strict=True))


@pytest.fixture(scope="module")
def alone():
    few = "--global-batch-size 8"  # at least two micro-batches; several ranks have more
    lines = run(1, [f"{case} {few}" for case in ALONE]).values()
    return {case: line for case, (line,) in zip(ALONE, lines, strict=True)}


@pytest.fixture(scope="module")
def four():
    return run(4, FOUR)


def assert_sound(ranks):
    for rank in ranks:
        assert rank["values"] == [None] * 2 * len(rank["seconds"])  # no loss, no norm
        assert rank["closing"] == []  # every operation has a cost
        assert not rank["back"]
        # A step is like the one before, in time and in memory.
        assert rank["seconds"][-1] == pytest.approx(rank["seconds"][-2], rel=1e-6)
        assert len(set(rank["live"])) == len(set(rank["peak"])) == 1
        assert 0 < rank["live"][0] < rank["peak"][0] <= rank["reserved"]


@pytest.mark.parametrize("case", ALONE)
def test_one_card(alone, case):
    assert_sound([alone[case]])


@pytest.mark.parametrize("case", FOUR)
def test_four_cards(four, case):
    assert_sound(four[case])


@pytest.mark.parametrize("cases", [MORE, pytest.param(SOAK, marks=pytest.mark.stress)],
                         ids=["more", "soak"])
def test_more_layouts_on_four_cards(cases):
    for case, ranks in run(4, cases).items():
        assert_sound(ranks)
        names = case.partition("cards=")[2].split(" ")[0].split(",")
        for rank, name in zip(ranks, names, strict=False):
            assert name in ("", rank["card"]) or rank["card"].startswith(f"{name}-")


@pytest.mark.parametrize("case", SCHEDULES)
def test_the_bubble_is_that_of_theory(four, case):
    """Recorded from a run whose stages take the same time and whose messages take none."""
    first, chunks = four[case][0], SCHEDULES[case]
    expected = bubble_fraction(4, 8, chunks)
    if "zb-h1" in case:  # (p-1) (F + B - W) of idle time (Qi et al. 2023, table 2), F = B = W
        expected = 3 / (3 * 8 + 3)
    assert first["bubble"] == pytest.approx(expected, abs=1e-9)
    assert first["busy"] == pytest.approx([8 * sum(EVEN.values())] * 4, rel=1e-9)


@pytest.mark.parametrize("case", SCHEDULES)
def test_a_run_takes_as_long_as_its_schedule_simulated(four, case):
    name = case.partition("--schedule ")[2] or ("interleaved" if CHUNK in case else "1f1b")
    plan = load(name, 4, 8, SCHEDULES[case])
    total = simulate(plan, Durations(EVEN["F"], EVEN["B"], EVEN["W"])).total
    for rank in four[case]:  # reading loss and norm takes 20 us
        assert rank["seconds"][-1] == pytest.approx(total, abs=1e-4)


def test_all_ranks_end_a_step_together(four):
    for case in FOUR:
        last = [float.fromhex(rank["clock"][-1]) for rank in four[case]]
        # With ZeRO, each of two stages gathers its own number of parameters at the end.
        groups = [last[:2], last[2:]] if PP2 in case and ZERO in case else [last]
        for ends in groups:
            assert max(ends) - min(ends) <= 0.01 * max(ends), case


def test_model_states_are_the_formulas(alone, four):
    for line, precision, replicas, zero in (
            (alone[ON.strip()], "fp32", 1, False), (alone[f"{ON}--fp16"], "fp16", 1, False),
            (alone[f"{ON}cards=a100 --bf16"], "bf16", 1, False),
            (four[f"{ON}{ZERO}"][0], "fp32", 4, True)):
        expected = state_bytes(precision, replicas, zero).total * line["parameters"]
        assert line["live"][-1] == pytest.approx(expected, rel=0.01), precision


def test_recomputation_takes_time_and_saves_memory(alone):
    none, selective, full = (alone[f"{ON}{how}".strip()] for how in (
        "", "--recompute-activations", FULL))
    assert none["peak"] > selective["peak"] > full["peak"]
    assert none["seconds"][-1] < selective["seconds"][-1] < full["seconds"][-1]
    assert none["live"] == selective["live"] == full["live"]


def test_flash_attention_saves_both(alone):
    flash, none = alone[next(one for one in ALONE if "flash" in one)], alone[ON.strip()]
    assert flash["peak"] < none["peak"] and flash["seconds"][-1] < none["seconds"][-1]


def test_a_bigger_micro_batch_takes_memory_and_saves_time(alone):
    one, two, four_ = (alone[f"{ON}{how}".strip()] for how in (
        "--micro-batch-size 1", "", "--micro-batch-size 4"))
    assert one["peak"] < two["peak"] < four_["peak"]
    assert one["seconds"][-1] > two["seconds"][-1] > four_["seconds"][-1]


def test_a_faster_card_is_faster(alone):
    assert alone[f"{ON}cards=a100"]["seconds"][-1] < alone[ON.strip()]["seconds"][-1]


def test_the_slower_card_of_a_mixed_job_decides(four):
    """Data-parallel: the fast ones wait. Within a node, no NVLink connects different models."""
    slow, mixed, quick, apart, mixed_apart = (four[case][0]["seconds"][-1] for case in (
        ON.strip(), f"{ON}{MIXED}", f"{ON}cards=a100,a100,a100,a100",
        f"{ON}{DECLARED}", f"{ON}{MIXED} {DECLARED}"))
    assert mixed_apart == pytest.approx(apart, rel=1e-3)
    assert mixed > slow and quick < 0.9 * slow
    ranks = four[f"{ON}{MIXED}"]
    assert [rank["card"] for rank in ranks] == ["v100-sxm2-16gb"] * 2 + ["a100-80gb"] * 2
    assert [line.rpartition(" on ")[2] for line in ranks[0]["said"][:2]] == [
        "rank(s) 0,1", "rank(s) 2,3"]


def test_overlapping_the_gradients_sum_saves_time(four):
    assert four[f"{ON}{OVERLAP}"][0]["seconds"][-1] < four[ON.strip()][0]["seconds"][-1]


def test_a_network_costs_time(four):
    assert four[f"{ON}{CROSSED}"][0]["seconds"][-1] > four[ON.strip()][0]["seconds"][-1]
    assert "between nodes infiniband 4 x 100 Gbit/s" in four[f"{ON}{CROSSED}"][0]["said"][-1]


def test_an_estimate_reads_the_same_declaration_as_the_ranks(four, monkeypatch):
    monkeypatch.setenv("VIRTUAL_GPU", "v100")
    flags = [*trainer_steps.MODEL.split(), *PP2.split(), "--world-size", "4", "--gpus-per-node",
             "2", "--vocab-size", str(trainer_steps.VOCABULARY)]
    usual = estimate(flags).plan.seconds_per_iteration
    monkeypatch.setenv("VIRTUAL_NETWORK", "ethernet:5gbit")
    declared = estimate(flags).plan.seconds_per_iteration
    measured = four[f"{PP2} {DECLARED}"][0]["seconds"][-1]
    assert declared == pytest.approx(measured, rel=0.01) and declared > 1.5 * usual


def test_the_distributed_optimizer_saves_memory(four):
    assert four[f"{ON}{ZERO}"][0]["live"][-1] < 0.7 * four[ON.strip()][0]["live"][-1]

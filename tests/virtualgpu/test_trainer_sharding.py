"""Sharded data parallelism on virtual GPUs: memory by ZeRO's formulas, exposed and hidden
communication, and estimates in one process that predict both."""

from functools import cache
from itertools import pairwise

import pytest

from layout_estimator.memory_record import record
from layout_estimator.requests import EstimateError, estimate
from minimegatron.formulas import state_bytes
from virtualgpu.core import stacks
from virtualgpu.core.cards import find
from virtualgpu.core.workspaces import sizes
from warmranks import run_ranks

from . import trainer_steps

RANKS, STEPS = 2, 2
# Large enough that kernels take longer than their launches, and layers longer than latencies.
LARGE = ("--device virtual:h100 --bf16 --hidden-size 2048 --seq-length 2048 "
         "--max-position-embeddings 2048 --num-layers 4 --use-flash-attn --attention-dropout 0 "
         "--hidden-dropout 0 --timing-log-level 0 --global-batch-size 8")
FSDP = "--use-megatron-fsdp --data-parallel-sharding-strategy"
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
OVERLAP, KEEP = "--overlap-grad-reduce", "--torch-fsdp2-no-reshard-after-forward"
OVERLAPS = f"{OVERLAP} --overlap-param-gather"
HYBRID = "--num-distributed-optimizer-instances 2"
EXPOSED = [f"{LARGE} {FSDP} {strategy}" for strategy in STRATEGIES]
HIDDEN = [f"{LARGE} {FSDP} {strategy} {OVERLAPS}" for strategy in STRATEGIES[1:]]
Z3 = HIDDEN[-1]
ON_TWO_NODES = "nodes=a,a,b,b --virtual-network ethernet:100gbit"
NODES = [f"{Z3} {ON_TWO_NODES}", f"{Z3} {HYBRID} {ON_TWO_NODES}"]
GRIDS = [*NODES, f"{EXPOSED[2]} {HYBRID} {ON_TWO_NODES}", *(f"{Z3} {more}" for more in (
    "--recompute-granularity full --recompute-method uniform", "--num-layers 12",
    "--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 2 --schedule zb-h1",
    "--tensor-model-parallel-size 2 --sequence-parallel",
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"))]
# Several micro-batches are in flight. The parameters that stay gathered exist once, and the first
# backward pass frees them, so the next one gathers them again, which the estimated time leaves out.
KEPT = [f"{Z3} --pipeline-model-parallel-size 2 {more} {KEEP}" for more in (
    "--num-layers-per-virtual-pipeline-stage 1", "--global-batch-size 16")]
STEP = stacks.card_under("h100", stacks.default_megatron(find("h100"))).efficiency.step


def run(cases, ranks=RANKS):
    results = run_ranks(trainer_steps.run, ranks, STEPS, cases, backend=None, timeout=500)
    return dict(zip(cases, zip(*results, strict=True), strict=True))


@pytest.fixture(scope="module")
def steps():
    """{case: the ranks' results, in order}"""
    return run([*EXPOSED[:1], *EXPOSED[2:], *HIDDEN, f"{Z3} {KEEP}"])


@cache
def estimated(case, ranks=RANKS):
    flags = [word for word in case.split() if not word.startswith("nodes=")]
    per_node = ranks // (2 if "nodes=" in case else 1)
    return estimate([*trainer_steps.MODEL.split(), *flags, "--world-size", str(ranks),
                     "--gpus-per-node", str(per_node), "--vocab-size",
                     str(trainer_steps.VOCABULARY)]).plan


def assert_predicted(case, ranks, error_of_time=0.01):
    plan = estimated(case, len(ranks))
    # The ranks' steps begin without the host's work between two steps.
    assert plan.seconds_per_iteration == pytest.approx(
        max(rank["seconds"][-1] for rank in ranks) + STEP, rel=error_of_time)
    peaks = [memory.total - memory.outside for memory in plan.memory]
    assert max(peaks) == pytest.approx(max(rank["peak"][-1] for rank in ranks), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*EXPOSED[2:], *HIDDEN, f"{Z3} {KEEP}"])
def test_an_estimate_predicts_the_ranks(steps, case):
    assert_predicted(case, steps[case])


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_an_estimate_predicts_the_ranks_of_other_grids():
    for case, ranks in run([*GRIDS, *KEPT], 4).items():
        assert_predicted(case, ranks, 0.02 if case in KEPT else 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("stage, case", [
    (0, EXPOSED[0]), *enumerate(EXPOSED[2:], start=2), *enumerate(HIDDEN, start=1)])
def test_memory_between_steps_is_that_of_zero_s_formulas(steps, stage, case):
    """Parameters, gradients, and optimizer state (Rajbhandari et al. 2020, figure 1)."""
    expected = state_bytes("bf16", RANKS, stage).total
    for rank in steps[case]:
        live = rank["live"][-1] - inputs() - workspace_bytes()
        assert live == pytest.approx(expected * rank["parameters"], rel=0.03)


def inputs():
    """Return the bytes of a step's micro-batches, which are still there: tokens, labels, mask."""
    return 8 // RANKS * 2048 * (8 + 8 + 4)


def workspace_bytes():
    """Return the bytes of cuBLAS's workspaces, of the forward and of the backward pass."""
    return sum(sizes(find("h100"), fused=True) + sizes(find("h100"), fused=False))


@pytest.mark.slow
def test_a_pass_has_at_most_two_layers_more_than_the_shards(steps):
    """Parameters in bf16, and gradients in fp32: of one layer that is used and its neighbor."""
    layer = 12 * 2048**2
    embedding = (trainer_steps.VOCABULARY + 2048) * 2048
    peaks = {case: steps[case][0]["peak"][-1] for case in steps}
    parameters = steps[Z3][0]["parameters"]
    for stage, case in enumerate(HIDDEN[1:], start=2):
        saved = (state_bytes("bf16", RANKS).total
                 - state_bytes("bf16", RANKS, stage).total) * parameters
        in_use = peaks[case] - (peaks[EXPOSED[0]] - saved)
        assert 0 < in_use <= (2 * layer + embedding) * (4 + 2 * (stage == 3))
    assert peaks[EXPOSED[0]] > peaks[HIDDEN[0]] > peaks[EXPOSED[2]] > peaks[EXPOSED[3]]
    assert peaks[Z3] < peaks[f"{Z3} {KEEP}"]


@pytest.mark.slow
@pytest.mark.parametrize("exposed, hidden", [*zip(EXPOSED[2:], HIDDEN[1:], strict=True)])
def test_overlap_hides_most_of_the_communication(steps, exposed, hidden):
    slow, fast = (estimated(case) for case in (exposed, hidden))
    assert fast.communication < 0.25 * slow.communication
    saved = steps[exposed][0]["seconds"][-1] - steps[hidden][0]["seconds"][-1]
    waited = slow.communication * slow.seconds_per_iteration
    assert 0.75 * waited < saved < 1.05 * waited


def test_each_stage_exposes_what_it_moves():
    """Bytes of m micro-batches, in bytes per parameter of bf16 weights and fp32 gradients: stage 1
    moves 4 + 2, stage 2 4m + 2, and stage 3 4m + 2 * 2m."""
    times = [plan.communication * plan.seconds_per_iteration for plan in map(estimated, EXPOSED)]
    m = 2
    for stage, moved in ((2, 4 * m + 2), (3, 4 * m + 4 * m)):
        assert times[stage] / times[1] == pytest.approx(moved / 6, rel=0.1)


@pytest.mark.stress
def test_hybrid_sharding_keeps_the_gathers_within_a_node():
    apart, hybrid = (estimated(case, 4) for case in NODES)
    assert hybrid.seconds_per_iteration < 0.9 * apart.seconds_per_iteration
    assert hybrid.memory[0].total > apart.memory[0].total  # the shards are twice as large


def test_a_record_of_memory_shows_layers_come_and_go():
    """Memory over time (docs/virtual-gpus.md): parameters and gradients rise and fall again."""
    flags = f"{LARGE} {FSDP} optim_grads_params {OVERLAPS} --world-size 4 --num-attention-heads 8"
    seen = record([*flags.split(), "--micro-batch-size", "2", "--global-batch-size", "16",
                   "--vocab-size", "8192"])  # two micro-batches per rank
    for name in ("parameters", "gradients"):
        row = seen.categories[name]
        assert row[0] == row[-1] == min(row) and max(row) > 1.5 * row[0]
        assert sum(b > a for a, b in pairwise(row)) > 4 * 4  # a rise for every layer


def test_a_cluster_of_unlike_nodes_is_refused():
    with pytest.raises(EstimateError, match=r"fast ranks would wait .* nearest: --use-distributed"):
        estimate([*trainer_steps.MODEL.split(), *f"{FSDP} optim_grads".split(), "--cluster",
                  "a100:1x2,v100:1x2"])

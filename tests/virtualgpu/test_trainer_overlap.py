"""On virtual GPUs, flags that hide or shorten communication gain what the modeled streams and links
allow, and an estimate in one process predicts it."""

from collections import Counter

import pytest

from layout_estimator.cluster import modeled_cluster
from layout_estimator.measurement import chunk_cost
from layout_estimator.representative import representative_context
from layout_estimator.requests import estimate
from minimegatron.arguments import parse_arguments
from virtualgpu.core.cards import find
from virtualgpu.core.gpu import VirtualGpu
from warmranks import run_ranks

from . import trainer_steps

TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
GRID = f"--device virtual:a100 {TP2} {PP2} --fp16 --virtual-network ethernet:4gbit nodes=a,a,b,b"
SCATTER = "--scatter-gather-tensors-in-pipeline"
OVERLAP = "--sequence-parallel --tp-comm-overlap"
CASES = [f"{GRID} {flags}".strip() for flags in ("", SCATTER, OVERLAP)]
FP8 = "--fp8-format hybrid --fp8-recipe"
# A layer of GPT-3 175B, in the middle of three stages.
LARGE = ("--num-layers 3 --hidden-size 12288 --num-attention-heads 96 --seq-length 2048 "
         "--max-position-embeddings 2048 --micro-batch-size 1 --bf16 --use-flash-attn "
         "--attention-dropout 0 --pipeline-model-parallel-size 3 --sequence-parallel --lr 1 "
         "--train-iters 1 --data-path x --vocab-file x --merge-file x --timing-log-level 0 ")


@pytest.fixture(scope="module")
def seconds():
    """{case: seconds of a step on the slowest rank}"""
    results = run_ranks(trainer_steps.run, 4, 2, CASES, backend=None, timeout=300)
    return {case: max(rank["seconds"][-1] for rank in ranks)
            for case, ranks in zip(CASES, zip(*results, strict=True), strict=True)}


def estimated(case):
    flags = [word for word in case.split() if not word.startswith("nodes=")]
    return estimate([*trainer_steps.MODEL.split(), *flags, "--world-size", "4", "--gpus-per-node",
                     "2", "--vocab-size", str(trainer_steps.VOCABULARY)]).plan.seconds_per_iteration


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_an_estimate_predicts_the_ranks(seconds, case):
    assert estimated(case) == pytest.approx(seconds[case], rel=0.01)


@pytest.mark.slow
def test_parts_of_activations_take_less_time_between_nodes(seconds):
    whole, parts, _ = (seconds[case] for case in CASES)
    assert parts < 0.8 * whole


def large_layer(tp, flags, monkeypatch):
    """Return the passes' costs, and the FLOPs of all GEMMs that were launched."""
    flops, start = Counter(), VirtualGpu.start

    def counted(gpu, func, args, kwargs, plan, out):
        if plan.work.gemm is not None:
            flops["products"] += plan.work.gemm.flops
        start(gpu, func, args, kwargs, plan, out)

    world = {"RANK": "0", "WORLD_SIZE": str(3 * tp)}
    config = parse_arguments([*LARGE.split(), "--tensor-model-parallel-size", str(tp), *flags],
                             world)
    monkeypatch.setattr(VirtualGpu, "start", counted)
    with modeled_cluster(find("h100"), None, config.world_size, 8) as cluster:
        ctx = representative_context(config, cluster, stage=1)
        return chunk_cost(ctx, 51200, 0, False).passes.values(), flops["products"]


@pytest.mark.parametrize("tp, fp8", [(4, ""), (8, ""), *((4, f"{FP8} {recipe}") for recipe in (
    "delayed", "blockwise"))])
def test_at_least_half_of_a_large_layer_s_communication_is_hidden(tp, fp8, monkeypatch):
    plain, flops = large_layer(tp, fp8.split(), monkeypatch)
    overlapped, same_flops = large_layer(tp, [*fp8.split(), "--tp-comm-overlap"], monkeypatch)
    exposed = [sum(cost.communication for cost in costs) for costs in (plain, overlapped)]
    busy = [sum(cost.busy for cost in costs) for costs in (plain, overlapped)]
    assert same_flops == flops > 0
    assert exposed[1] < 0.5 * exposed[0]
    # GEMMs of chunks are less efficient, so the gain is less than what is hidden.
    assert 0 < busy[0] - busy[1] < exposed[0] - exposed[1]

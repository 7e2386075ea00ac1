"""The cost of a job on a cluster of unlike GPUs, from its command line alone."""

from __future__ import annotations

import pytest

from labkit import check
from labkit.check import measure
from labkit.check.allocation import Component
from labkit.check.allowed import EstimateHardware, flags_for_estimate
from labkit.check.checks import Failed
from labkit.check.job import Job
from labkit.check.runs import TRAINER, RanksOnNode, TrainingRun
from virtualgpu.net.cluster_spec import parse_nodes

from .test_measure import CARD, MODEL, in_process, job, parsed

MIXED = "a100:2x1,a10:2x1"


def mixed(flags: str, cluster: str = MIXED, kinds: tuple[str, ...] = ("a100", "a10")) -> Job:
    """Return a job whose components have these kinds, on nodes like the cluster's."""
    groups = parse_nodes(cluster)
    placement = [RanksOnNode(number, group.per_node) for number, group in enumerate(groups)
                 for _ in range(group.nodes)]
    world = sum(node.ranks for node in placement)
    run = TrainingRun(len(placement), placement[0].ranks, parsed(f"{MODEL} {flags}", world), (),
                      TRAINER, (), {}, placement=tuple(placement))
    return Job(tuple(Component({"gpus-per-node": f"{kind}:2"} if kind else {}) for kind in kinds),
               (run,), (), ())


LARGE = "--hidden-size 2048 --num-attention-heads 16 --seq-length 512 " \
        "--max-position-embeddings 512 --pipeline-model-parallel-size 2 --num-layers 60"


@pytest.mark.parametrize(("balance", "fits"), [("52-8", [True, True]), ("8-52", [True, False])])
def test_each_stage_is_held_against_its_own_gpu(capsys, balance, fits):
    given = mixed(f"{LARGE} --balance {balance} --global-batch-size 8")
    result = check.figures(given, cluster=MIXED, vocab_size=500)
    plan = in_process(flags_for_estimate(given.flags, EstimateHardware("", 0, cluster=MIXED), 500))
    assert result.milliseconds == 1000 * plan.seconds_per_iteration and result.fits == plan.fits
    assert [(one.stage, one.gpu) for one in result.stages] == [(0, "a100-80gb"), (1, "a10")]
    assert [one.fits for one in result.stages] == fits and result.fits == all(fits)
    assert [round(one.capacity) for one in result.stages] == [79, 22]
    assert result.capacity == plan.capacity / 2**30
    assert ("CUDA out of memory" in capsys.readouterr().out) != result.fits


@pytest.mark.parametrize(("given", "cluster", "says"), [
    (mixed(""), "a100:2x1,a10:2x2", "on 2 x 2 (nodes x ranks per node, in the order of the node "
     "ranks); the cluster a100-80gb:2x1,a10:2x2 has 1 x 2 + 2 x 2 GPUs"),
    (mixed(""), "a100:4x1", "the cluster a100-80gb:4x1 has 1 x 4 GPUs"),
    (mixed("", "a100:4x1,a10:2x1"), "a100:2x1,a10:4x1", "on 1 x 4 + 1 x 2 (nodes"),
    (mixed(""), "a10:2x1,a100:2x1", "Node rank 0 is on a node with a100 GPUs, which component 0 of "
     "the job requests; in the cluster a10:2x1,a100-80gb:2x1, it has a10 GPUs"),
    (mixed("", kinds=("a100", "x")), MIXED, "Node rank 1 is on a node with x GPUs")])
def test_a_cluster_must_have_the_nodes_of_the_job(monkeypatch, given, cluster, says):
    monkeypatch.setattr(measure, "run_here", lambda words: pytest.fail("it ran"))
    with pytest.raises(Failed) as caught:
        check.figures(given, cluster=cluster)
    assert says in str(caught.value)


@pytest.mark.parametrize(("given", "cluster", "says"), [
    (mixed("--global-batch-size 40008 --pipeline-model-parallel-size 4"), MIXED, "at most 40,000"),
    (mixed("--global-batch-size 100000"), MIXED, "50,000 passes in each step .stages x "
     "micro-batches x data-parallel replicas.: too large"),
    (mixed("--global-batch-size 2080", "a100:8x65,a10:8x65"), "a100:8x65,a10:8x65",
     "1,040 ranks: too large to estimate here; at most 512")])
def test_a_cluster_that_takes_long_is_refused(monkeypatch, given, cluster, says):
    monkeypatch.setattr(measure, "run_here", lambda words: pytest.fail("it ran"))
    with pytest.raises(Failed, match=says):
        check.figures(given, cluster=cluster)


def test_nodes_that_are_requested_without_a_kind_may_have_any(monkeypatch):
    words: list[str] = []
    monkeypatch.setattr(measure, "run_here", lambda given: words.extend(given) or {})
    with pytest.raises(Failed, match="printed no estimate"):
        check.figures(mixed("", kinds=("", "")), cluster=MIXED, network="ethernet:10gbit")
    assert words[4:8] == ["--cluster", "a100-80gb:2x1,a10:2x1", "--virtual-network",
                          "ethernet:10gbit"]


@pytest.mark.parametrize(("given", "says"), [
    ({"cluster": "a100:2,b7:2"}, "b7"), ({"cluster": "a100"}, "nearest: a100:4x2,a10:4x4"),
    ({"cluster": ""}, "nearest"), ({}, "give either a device"),
    ({"device": CARD, "cluster": MIXED}, "give either a device")])
def test_a_cluster_that_is_none_is_the_authors_error(given, says):
    with pytest.raises(ValueError, match=rf"check\.figures: .*{says}"):
        check.figures(job(), **given)

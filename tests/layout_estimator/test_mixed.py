"""--estimate --cluster: nodes with different GPUs."""

import json
import shlex

import pytest

from lab.cli import main
from layout_estimator.planner import format_plan
from layout_estimator.prices import DOLLARS_PER_HOUR
from layout_estimator.replicas import StepEnd
from layout_estimator.requests import EstimateError, estimate, read_flags
from layout_estimator.stage_cost import StageCost, StepCollective, StepCost
from layout_estimator.step_time import StepClock
from minimegatron.formulas import step_flops
from minimegatron.report.throughput import shape_of
from virtualgpu.core.cards import find

from ..minimegatron.conftest import dataset  # noqa: F401  fixture
from .mixed_runs import MODEL, Case, compare, draw

CLUSTER = "--cluster a100:2x1,a10:2x2"
RUN = f"{MODEL} --micro-batch-size 2 --global-batch-size 24 --fp16 "


def plan(flags):
    return estimate(shlex.split(RUN + flags)).plan


@pytest.mark.slow
def test_delayed_weight_gradients_keep_no_message_in_memory(dataset, tmp_path):  # noqa: F811
    zb_h1 = Case("v100:3x1", "--pipeline-model-parallel-size 3 --balance 1-1-6 --schedule zb-h1 "
                             "--micro-batch-size 2 --global-batch-size 12")
    assert abs(compare(zb_h1, dataset, tmp_path).memory) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 8, 9])
def test_one_process_says_what_all_ranks_say(dataset, tmp_path, seed):  # noqa: F811
    errors = compare(draw(seed, most=6), dataset, tmp_path)
    assert abs(errors.time) < 0.02 and abs(errors.memory) < 0.02


def test_a_cluster_of_one_kind_is_the_flags_that_say_the_same():
    flags = "--pipeline-model-parallel-size 2 "
    assert plan(f"{flags} --cluster v100:2x2") == plan(
        f"{flags} --device virtual:v100 --world-size 4 --gpus-per-node 2")


def test_a_stage_on_slower_gpus_holds_up_the_others_unless_it_has_fewer_layers():
    deep = f"{CLUSTER} --pipeline-model-parallel-size 3 "
    even, uneven, first = (plan(f"{deep} --balance {layers}")
                           for layers in ("3-3-2", "6-1-1", "1-4-3"))
    assert uneven.seconds_per_iteration < even.seconds_per_iteration < first.seconds_per_iteration
    assert [(one.stage, one.card) for one in even.memory] == [
        (0, "a100-80gb"), (1, "a10"), (2, "a10")]


def test_replicas_wait_for_the_slowest_gpu_of_their_stage():
    mixed, slow, fast = (plan(f"--cluster {cluster} --virtual-network infiniband:200gbit")
                         for cluster in ("a100:1x1,t4:1x1", "t4:1x2", "a100:1x2"))
    assert fast.seconds_per_iteration < 0.5 * slow.seconds_per_iteration
    assert mixed.seconds_per_iteration == pytest.approx(slow.seconds_per_iteration, rel=0.05)
    assert slow.bubble == fast.bubble == 0 < mixed.bubble
    assert [(one.stage, one.card) for one in mixed.memory] == [(0, "a100-80gb"), (0, "t4")]


def test_the_network_is_the_slowest_that_a_kind_of_node_comes_with():
    assert plan("--cluster a100:2x1,a10:2x2").network == plan("--cluster a10:2x2").network
    named = plan("--cluster a100:2x1,a10:2x2 --virtual-network ethernet:10gbit")
    assert named.network == "ethernet 10 Gbit/s"


def test_utilization_and_price_are_those_of_all_gpus_together():
    made = plan(f"{CLUSTER} --tokens 300e9")
    cards = {"a100-80gb": 2, "a10": 4}
    assert made.gpus == cards and made.nodes == 3 and made.gpus_per_node is None
    config = read_flags(shlex.split(f"{RUN} {CLUSTER}"))
    flops = step_flops(shape_of(config, 50304), 24, causal=True)
    peaks = sum(count * find(name).tflops["fp16"] for name, count in cards.items())
    assert made.share_of_peak == pytest.approx(
        flops / made.seconds_per_iteration / 1e12 / peaks)
    assert made.dollars == pytest.approx(24 * made.days * sum(
        count * DOLLARS_PER_HOUR[name] for name, count in cards.items()))


def test_the_report_names_the_stage_and_the_gpu_model_that_memory_is_too_small_for():
    made = plan(f"{CLUSTER} --pipeline-model-parallel-size 3 --balance 3-3-2 "
                "--micro-batch-size 768 --global-batch-size 1536")
    assert not made.fits and made.fullest.card == "a10"
    said = format_plan(made)
    stage = made.fullest.stage
    assert f"NO: CUDA out of memory on stage {stage} (a10)" in said
    assert "2 virtual a100-80gb + 4 virtual a10 on 3 node(s), " in said
    rows = [line for line in said.splitlines() if line.startswith("  stage ")]
    assert ["does not fit" in row for row in rows] == [
        one.total > one.capacity for one in made.memory]
    assert rows[0].startswith("  stage 0 (a100-80gb)") and "fit" not in rows[0]


@pytest.mark.parametrize("flags, why", [
    ("--cluster a100:4x2,a1000:4x4", "--cluster: cluster 'a1000:4x4': no virtual GPU model"),
    ("--cluster a100", "--cluster: cluster 'a100': expected KIND:GPUSxNODES"),
    ("--cluster=a100:4x", "--cluster: cluster 'a100:4x': expected KIND:GPUSxNODES"),
    ("--cluster", "--cluster: expected one argument"),
    (f"{CLUSTER} --world-size 8", "--world-size 8: --cluster a100:2x1,a10:2x2 describes the GPUs, "
     "6 in all; nearest: leave out --world-size"),
    (f"{CLUSTER} --gpus-per-node=2", "--gpus-per-node 2: --cluster"),
    (f"{CLUSTER} --device virtual:v100", "--device virtual:v100: --cluster"),
    ("--cluster a100:1x1,a10:1x1 --tensor-model-parallel-size 2", "ranks 0 to 1 have different "
     "GPUs (a100-80gb, a10)"),
    ("--cluster v100:2x1,a100:2x1 --bf16", "no bf16 arithmetic"),
    (f"{CLUSTER} --balance 6-1 --pipeline-model-parallel-size 2", "adds up to 7 layers"),
])
def test_bad_input_is_refused(flags, why):
    words = shlex.split(RUN.replace("--fp16", "") + flags)
    with pytest.raises(EstimateError) as error:
        estimate(words)
    assert why in str(error.value)


def cost(*collectives):
    step = StepCost(None, collectives, 0.0, 0.0, 0, 0.0, 0.0)
    return StageCost((), step, None)


class Ended(StepClock):
    """The clock of a replica whose stages have ended their passes."""

    def __init__(self, costs, ends):
        self.costs, self._ends, self.waited = costs, ends, [0.0] * len(costs)

    def ends(self):
        return self._ends


def test_a_collective_of_replicas_begins_when_the_slowest_is_ready():
    reduce = StepCollective(0.5, 2.0, "replicas")
    norm = StepCollective(0.25, 1.0, "model")
    clocks = [Ended([cost(reduce, norm)] * 2, ends) for ends in ([1.0, 4.0], [3.0, 2.0])]
    # Stage 0 from 3.5 to 5.5, stage 1 from 4.5 to 6.5; then each replica's own two stages.
    assert StepEnd(clocks).run() == [[7.75, 7.75], [7.75, 7.75]]
    assert [clock.waited for clock in clocks] == [[3.0, 0.0], [1.0, 2.0]]


def test_what_starts_during_the_passes_is_waited_for_only_as_long_as_the_slowest_needs():
    first = StepCollective(0.0, 2.0, "replicas", ahead=3.0, in_passes=True)
    second = StepCollective(0.0, 1.0, "replicas", ahead=1.0, in_passes=True)
    clocks = [Ended([cost(first, second)], [end]) for end in (10.0, 12.0)]
    # The first from 9 to 11, so that the slower one never waits for it; the second until 12.
    assert StepEnd(clocks).run() == [[12.0], [12.0]]
    assert clocks[1].waited == [0.0]


def test_collectives_that_do_not_fit_together_are_an_error():
    clocks = [Ended([cost(StepCollective(0.0, 1.0, "replicas"))], [0.0]), Ended([cost()], [0.0])]
    with pytest.raises(RuntimeError, match="no collective has all of its ranks"):
        StepEnd(clocks).run()


@pytest.mark.slow
def test_lab_estimate_sweeps_a_mixed_cluster(capsys, tmp_path):
    path = tmp_path / "pareto.svg"
    words = shlex.split(f"{RUN} {CLUSTER} --recompute-granularity selective")
    assert main(["estimate", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {(one["tensor"], one["pipeline"], one["data"]) for one in found} == {
        (1, 1, 6), (1, 2, 3), (2, 1, 3)}
    words += ["--tensor-model-parallel-size", "2"]
    assert main(["estimate", *words, "--plot", str(path)]) == 0
    assert capsys.readouterr().out.startswith("virtual a100-80gb x 2 + virtual a10 x 4, ")
    assert path.read_text().startswith("<?xml")
    assert main(["estimate", *words, "--cluster=a100:2x1,a10:1x2"]) == 1
    assert ("a10:1x2 in --cluster has 1 GPU(s) per node; nearest: --tensor-model-parallel-size 1"
            in capsys.readouterr().err)

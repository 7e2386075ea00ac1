"""--estimate: one process says what a run on many cards would cost."""

import json
import re

import pytest

from layout_estimator.main import report
from layout_estimator.prices import DOLLARS_PER_HOUR
from layout_estimator.requests import EstimateError, estimate
from minimegatron.arguments import parse_arguments
from minimegatron.arguments.parse import parse_estimate
from minimegatron.errors import UserError
from minimegatron.formulas import parameters, state_bytes, step_flops
from minimegatron.report.throughput import shape_of
from virtualgpu.core.cards import CARDS

GPT2 = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 2 ")
CLUSTER = "--estimate --device virtual:v100 --world-size 4 --gpus-per-node 2 "


def config(flags):
    return parse_estimate((CLUSTER + GPT2 + flags).split())


def plan(config):
    """Return what `pretrain_gpt.py --estimate` prints."""
    return report(config, estimate(config).plan)


@pytest.fixture(scope="module")
def made():
    """The JSON of a plan for 300 billion tokens."""
    return json.loads(plan(config("--json --fp16 --tokens 300e9 --global-batch-size 64")))


def test_the_figures_agree_with_each_other_and_with_the_formulas(made):
    gpt = shape_of(config(""), 50304)
    assert made["parameters"] == parameters(gpt) == made["parameters_of_rank"]
    assert (made["tensor"], made["pipeline"], made["data"], made["micro_batches"]) == (1, 1, 4, 8)
    rate = step_flops(gpt, 64, causal=True) / made["seconds_per_iteration"] / 4 / 1e12
    assert made["teraflops_per_gpu"] == pytest.approx(rate)
    assert made["share_of_peak"] == pytest.approx(rate / 125)
    hours = 300e9 / (64 * 1024) * made["seconds_per_iteration"] / 3600
    assert made["days"] == pytest.approx(hours / 24)
    assert made["gpu_hours"] == pytest.approx(4 * hours)
    price = DOLLARS_PER_HOUR["v100-sxm2-16gb"]
    assert made["dollars"] == pytest.approx(4 * hours * price)
    (memory,) = made["memory"]
    each = state_bytes("fp16")
    assert memory["optimizer"] == each.optimizer * made["parameters"]
    assert memory["update"] == pytest.approx(each.main_gradients * made["parameters"], rel=0.01)
    assert memory["total"] == pytest.approx(sum(
        memory[part] for part in ("weights", "gradients", "optimizer", "activations", "outside")))
    assert made["fits"] and made["bubble"] == 0 and 0 < made["communication"] < 1


@pytest.fixture
def declare(monkeypatch):
    """Declare a GPU and a network, as a node of the cluster does."""
    def declare(gpu=None, network=None):
        for name, value in (("VIRTUAL_GPU", gpu), ("VIRTUAL_NETWORK", network)):
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
    return declare


def test_the_network_is_the_flag_s_then_the_cluster_s_then_the_gpu_s(declare):
    same = {}  # one dictionary for all: another network is another cluster

    def network(flags=""):
        made = estimate(config(f"--global-batch-size 8 {flags}"), same).plan
        return made.network, made.seconds_per_iteration

    declare()
    usual = network()
    assert usual[0] == "infiniband 4 x 100 Gbit/s"
    declare(network="ethernet:5gbit")
    slow = network()
    assert slow[0] == "ethernet 5 Gbit/s" and slow[1] > 1.5 * usual[1]
    given = network("--virtual-network infiniband:4x100gbit")
    declare(network="")  # as good as unset
    assert given == usual == network()
    declare()
    assert network("--virtual-network ethernet:5gbit") == slow


def test_the_gpu_is_the_flag_s_then_the_node_s(declare):
    declare(gpu="t4")
    assert estimate(config("")).plan.card == "virtual v100-sxm2-16gb"
    assert estimate(config("--device virtual")).plan.card == "virtual t4"


@pytest.mark.parametrize("declared, flags, why", [
    ({"network": "fast"}, "", r"^VIRTUAL_NETWORK: network 'fast': a kind .*ethernet:25gbit"),
    ({"network": "25"}, "--device virtual:a100", r"^VIRTUAL_NETWORK: network '25': a kind"),
    ({"gpu": "a1000"}, "--device virtual",
     r"^VIRTUAL_GPU=a1000: no virtual GPU model .*nearest: a100"),
    ({"gpu": ""}, "--device virtual", r"VIRTUAL_GPU is not set.*nearest: --device virtual:"),
    ({"network": "ethernet:25gbit"}, "--virtual-network fast", "^--virtual-network: network"),
])
def test_a_wrong_declaration_is_named(declare, declared, flags, why):
    declare(**declared)
    with pytest.raises((EstimateError, UserError), match=why):
        estimate(config(flags))


def test_a_flag_wins_over_a_wrong_declaration(declare):
    declare(gpu="a1000", network="fast")
    made = estimate(config("--virtual-network ethernet:25gbit")).plan
    assert made.network == "ethernet 25 Gbit/s"


def test_people_read_the_same_and_that_it_is_modeled(made):
    said = plan(config("--fp16 --tokens 300e9 --global-batch-size 64 --price-per-gpu-hour 1"))
    assert said.startswith("estimate on virtual v100-sxm2-16gb: modeled, nothing was run\n")
    assert float(re.search(r"time per iteration +(\S+) s", said)[1]) == pytest.approx(
        made["seconds_per_iteration"], rel=1e-3)
    hours, dollars = re.search(r"([\d,]+) GPU-hours, ([\d,]+) dollars", said).groups()
    assert hours == dollars  # a dollar each


def test_what_does_not_fit_is_said(made):
    said = plan(config("--micro-batch-size 64"))
    assert re.search(r"fits +NO: CUDA out of memory", said)


def test_a_deeper_pipeline_holds_less_and_waits_more():
    whole, deep = (json.loads(plan(config(f"--json --global-batch-size 32 {flags}")))
                   for flags in ("", "--pipeline-model-parallel-size 4"))
    assert whole["bubble"] == 0 < deep["bubble"]
    assert len(deep["memory"]) == 4
    assert max(stage["total"] for stage in deep["memory"]) < whole["memory"][0]["total"]


@pytest.mark.parametrize("ending, head", [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_figure(tmp_path, ending, head):
    path = tmp_path / f"plan.{ending}"
    plan(config(f"--plot {path}"))
    assert path.read_bytes().startswith(head)


@pytest.mark.parametrize("flags, why", [
    ("--world-size 0", "--world-size 0: must be a number of at least 1"),
    ("--tokens nan", "--tokens nan: must be a number of at least 1"),
    ("--price-per-gpu-hour -1", "--price-per-gpu-hour -1.0: must be a number of at least 0"),
    ("--plot nowhere/x.svg", "--plot nowhere/x.svg: there is no folder nowhere"),
    ("--device cpu", "--estimate with --device cpu: only virtual GPUs can be estimated; nearest: "
     "--device virtual:"),
    ("--plot figure.pdf", "--plot figure.pdf: a file that ends in .svg or .png; nearest: --plot "
     "figure.svg"),
    ("--tensor-model-parallel-size 3", "is not divisible by tensor model parallel size"),
    ("--bf16", "no bf16 arithmetic"), ("--device virtual:v1000", "no virtual GPU model is called"),
])
def test_bad_input_is_refused(flags, why):
    with pytest.raises(UserError) as error:
        config(flags)
    assert why in str(error.value)


def test_a_flag_of_estimates_alone_is_refused():
    run = GPT2 + "--lr 1e-4 --train-iters 1 --data-path d --vocab-file v --merge-file m"
    with pytest.raises(UserError, match="--world-size belongs to --estimate, which is not given"):
        parse_arguments(f"{run} --world-size 4".split(), {})


def test_prices_are_of_cards_that_there_are():
    assert DOLLARS_PER_HOUR.keys() <= CARDS.keys()
    assert all(0.1 < price < 20 for price in DOLLARS_PER_HOUR.values())

"""A device's name leads to its data sheet, or to none; never to another card's."""

import subprocess
import sys

import pytest

from virtualgpu.core.accuracy import MEMORY, TIME, describe, expected_error, margin, memory_error
from virtualgpu.core.cards import ALIASES, CARDS, card_by_product, find, sheet_peak
from virtualgpu.core.errors import UnknownCard
from virtualgpu.core.stacks import STACKS, card_under, under
from virtualgpu.net import network

PRODUCTS = {
    "NVIDIA H100 80GB HBM3": "h100-80gb", "NVIDIA H100 PCIe": "h100-pcie-80gb",
    "NVIDIA H200": "h200", "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-80GB": "a100-80gb", "A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-PCIE-40GB": "a100-40gb", "NVIDIA A100 80GB PCIe": "a100-80gb",
    "NVIDIA A10": "a10", "Tesla V100-SXM2-16GB": "v100-sxm2-16gb",
    "Tesla V100-SXM2-32GB": "v100-32gb", "Tesla V100-PCIE-16GB": "v100-pcie-16gb",
    "Tesla V100-PCIE-32GB": "v100-pcie-16gb", "Tesla T4": "t4", "NVIDIA L4": "l4",
    "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 3090 Ti": None, "NVIDIA H100 NVL": None, "NVIDIA A10G": None,
    "NVIDIA L40S": None, "NVIDIA GeForce RTX 4090": None, "Tesla V100S-PCIE-32GB": None,
    "NVIDIA A100-SXM4-80GB MIG 1g.10gb": None, "": None,
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_card_of_a_product(product):
    result = card_by_product(product)
    assert (result and result.name) == PRODUCTS[product]


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_card_s_own_product_name_leads_to_it(card):
    assert card_by_product(card.product) is card


def test_peaks_of_cards_that_there_are_and_are_not():
    assert sheet_peak("NVIDIA A100-SXM4-80GB", "bf16") == 312
    assert sheet_peak("Tesla V100-SXM2-16GB", "fp16") == 125
    assert sheet_peak("Tesla V100-SXM2-16GB", "bf16") is None
    assert sheet_peak("NVIDIA A200", "fp16") is None


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_half_precision_is_at_least_as_fast(card):
    peaks = card.tflops
    assert peaks["fp16"] > peaks["fp32"]
    assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"]
    assert peaks.get("fp4", 1e9) > peaks.get("fp8", 1e8) > peaks["fp16"]


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_every_figure_of_a_card_has_its_source(card):
    topics = [source.partition(": ")[0] for source in card.sources]
    assert topics == ["data sheet", "memory", "context", *["full context"] * bool(
        card.full_context), "matmul", "vector", "attention", "link", "launch"]
    assert all(source.partition(": ")[2] for source in card.sources)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_efficiencies_are_shares_of_the_peaks_there_are(card):
    reached = card.efficiency
    assert set(reached.matmul) == set(card.tflops)
    for share in (*reached.matmul.values(), reached.vector, reached.attention, reached.link):
        assert 0 < share <= 1
    assert reached.attention <= reached.matmul["fp16"]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_leaves_fp8_s_advantage_over_16_bits_as_it_is(stack):
    alone, shares = CARDS["h100-80gb"].efficiency.matmul, under(
        CARDS["h100-80gb"], STACKS[stack]).efficiency.matmul
    assert shares["fp8"] / shares["bf16"] == pytest.approx(alone["fp8"] / alone["bf16"])


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_the_memory_is_what_cuda_leaves_of_the_sheet_s(card):
    gigabytes = {"rtx3090": 24, "a10": 24, "l4": 24, "t4": 16, "h200": 141, "b200": 180}.get(
        card.name) or int(card.name.rpartition("-")[2].removesuffix("gb"))
    assert 0.96 * gigabytes < card.memory / 1e9 < 1.08 * gigabytes
    assert card.context < 0.03 * card.memory
    assert not card.full_context or 3 * card.context < card.full_context < 0.09 * card.memory


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_stack_changes_the_efficiency_only_of_gpu_models_that_it_names(card, stack):
    alone, training = card.efficiency, under(card, STACKS[stack]).efficiency
    measured = ("matmul", "vector", "attention")
    unchanged = all(getattr(alone, name) == getattr(training, name) for name in measured)
    assert unchanged != (card.name in STACKS[stack].efficiency)
    assert STACKS[stack].efficiency.keys() <= CARDS.keys()
    assert training.dispatch == STACKS[stack].dispatch  # the host's time is that of the software


def test_the_expected_error_is_the_largest_and_unknown_if_one_is():
    volta, ampere, ada = (card_under(name, "megatron-2021") for name in ("v100", "a100", "l4"))
    known = TIME["megatron-2021"]
    assert expected_error([volta, ampere]) == max(
        known[card.name].error for card in (volta, ampere))
    assert expected_error([volta, ada]) is expected_error([CARDS["a100-80gb"]]) is None
    assert memory_error([volta, ampere]) == MEMORY[volta.name].error > MEMORY[ampere.name].error
    assert memory_error([volta, ada]) is None
    assert margin(0.074) == "mean error 7%" and margin(None) == "error unknown"


@pytest.mark.parametrize(("name", "stack", "text"), [
    ("a100", "megatron-2021", "mean error on published runs on a100-80gb: step time 4% (18 runs), "
     "peak memory 5% (22 runs)"),
    ("a10", "megatron-2021", "mean error on published runs on a10: step time 5% (1 run), "
     "peak memory 3% (1 run)"),
    ("h100", "megatron-core", "mean error on published runs on h100-80gb: peak memory 6% "
     "(10 runs); no step time to compare with"),
    ("a100-40gb", "composer-2023",
     "mean error on published runs on a100-40gb: step time 3% (19 runs)"),
    ("rtx3090", "megatron-2021", "no published run on rtx3090 to compare with"),  # an Ampere, too
    ("l4", "megatron-core", "no published run on l4 to compare with"),
])
def test_a_stack_states_the_errors_of_this_gpu_model_and_of_no_other(name, stack, text):
    assert describe(card_under(name, stack)) == text


@pytest.mark.parametrize(("name", "stack", "mebibytes"), [
    ("v100", "megatron-2021", 1271), ("a100", "megatron-2021", 1573),
    ("a100", "torch-eager-fsdp", 460), ("h100", "megatron-2021", 520)])
def test_software_before_cuda_11_7_loads_all_kernels_into_the_context(name, stack, mebibytes):
    assert card_under(name, stack).context == mebibytes * 2**20


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_card_s_network_can_be_read(card):
    assert network.parse(card.network).effective < (card.nvlink or card.pcie * 8)


def test_the_capacities_that_torch_prints():
    shown = {name: f"{CARDS[name].memory / 2**30:.2f}" for name in
             ("v100-sxm2-16gb", "v100-32gb", "a100-40gb", "a100-80gb", "h100-80gb", "l4")}
    assert list(shown.values()) == ["15.78", "31.75", "39.59", "79.25", "79.11", "22.03"]


@pytest.mark.parametrize("name", ["a100-80gb", "A100-80GB", "a100", " A100 "])
def test_a_card_is_found_by_its_name_and_its_alias(name):
    assert find(name) is CARDS["a100-80gb"]


@pytest.mark.parametrize(("name", "near"), [
    ("v100-sxm2", "v100-sxm2-16gb"), ("v10", "v100"), ("a100-60gb", "a100-80gb"),
    ("rtx3080", "rtx3090"), ("h100-nvl", "h100-80gb"), ("", "v100-sxm2-16gb"),
])
def test_an_unknown_card_names_the_nearest(name, near):
    with pytest.raises(UnknownCard, match=near) as error:
        find(name)
    assert repr(name) in str(error.value)
    assert isinstance(error.value, ValueError)


def test_aliases_lead_to_cards():
    assert set(ALIASES.values()) <= set(CARDS) and not set(ALIASES) & set(CARDS)


def test_the_cards_need_no_torch():
    code = "import sys, virtualgpu.core.cards; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr

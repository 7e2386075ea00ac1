"""A device's name leads to its data sheet, or to none; never to another card's."""

import pytest

from minimegatron.peaks import TFLOPS, card_of, peak

NAMES = {
    "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H100 PCIe": "h100-pcie", "NVIDIA H200": "h200",
    "NVIDIA A100-SXM4-80GB": "a100", "NVIDIA A100-PCIE-40GB": "a100", "NVIDIA A10": "a10",
    "Tesla V100-SXM2-16GB": "v100", "Tesla V100-PCIE-16GB": "v100-pcie", "Tesla T4": "t4",
    "NVIDIA L4": "l4", "NVIDIA GeForce RTX 3090": "rtx3090",
    "NVIDIA GeForce RTX 3090 Ti": None, "NVIDIA H100 NVL": None, "NVIDIA A10G": None,
    "NVIDIA L40S": None, "NVIDIA GeForce RTX 4090": None, "": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_card_of_a_name(name):
    assert card_of(name) == NAMES[name]


def test_peaks_of_cards_that_there_are_and_are_not():
    assert peak("a100", "bf16") == 312 and peak("v100", "fp16") == 125
    assert peak("v100", "bf16") is None and peak("a200", "fp16") is None


def test_half_precision_is_at_least_as_fast():
    for card, peaks in TFLOPS.items():
        assert peaks["fp16"] > peaks["fp32"], card
        assert peaks.get("bf16", peaks["fp16"]) == peaks["fp16"], card
        assert peaks.get("fp8", 1e9) > peaks["fp16"], card

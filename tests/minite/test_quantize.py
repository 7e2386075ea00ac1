"""Rounding, scales, and blocks, against tests/minite/oracle.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minite.quantize import (
    amax_of,
    cast,
    quantize_blocks,
    quantize_mx,
    scale_from_amax,
    update_history,
)
from minite.recipes import DelayedScaling, Float8BlockScaling, Format

from . import oracle

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
DTYPES = {"e4m3": E4M3, "e5m2": E5M2}


def matrix(rows: int, columns: int) -> torch.Tensor:
    """Values over ten orders of magnitude, so that blocks differ and small ones are subnormal."""
    torch.manual_seed(1)
    return torch.randn(rows, columns) * 10 ** (torch.rand(rows, columns) * 10 - 6)


def test_0_3952_becomes_0_40625_in_e4m3_and_0_375_in_e5m2():
    assert cast(torch.tensor(0.3952), E4M3).item() == 0.40625
    assert cast(torch.tensor(0.3952), E5M2).item() == 0.375


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_equals_the_definition_and_saturates(name):
    x = torch.cat([matrix(64, 64).flatten(), torch.tensor([1e9, -1e9, 464.0, 61440.0, 0.0]),
                   torch.arange(-600, 600) / 64])
    ours = cast(x, DTYPES[name]).double().numpy()
    assert (ours == oracle.round_to(x.numpy(), name)).all()


@pytest.mark.parametrize("name", DTYPES)
def test_infinity_saturates_and_nan_stays(name):
    y = cast(torch.tensor([torch.inf, torch.nan]), DTYPES[name]).float()
    assert y[0] == torch.finfo(DTYPES[name]).max and y[1].isnan()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("block", [(1, 128), (128, 128)])
@pytest.mark.parametrize("power_of_2", [True, False])
def test_blocks_equal_the_oracle(name, block, power_of_2):
    x = matrix(128, 256)
    ours = quantize_blocks(x, DTYPES[name], block, power_of_2).dequantize().numpy()
    theirs = oracle.blocks(x.numpy(), name, *block, power_of_2)
    np.testing.assert_allclose(ours, theirs, rtol=0 if power_of_2 else 1e-6)


@pytest.mark.parametrize("name", DTYPES)
def test_shared_exponents_equal_the_oracle(name):
    x = matrix(32, 128)
    x[3, :32] = torch.randn(32) * 1e36
    x[5, :32] = torch.linspace(-448, 448, 32)  # the scale is exactly one
    assert (quantize_mx(x, DTYPES[name]).dequantize().double().numpy()
            == oracle.mx(x.numpy(), name)).all()


def test_blocks_of_zeros_stay_zero():
    x = torch.zeros(128, 128)
    assert not quantize_mx(x, E4M3).dequantize().any()
    assert not quantize_blocks(x, E4M3).dequantize().any()


def test_a_transposed_square_block_has_the_same_values():
    q = quantize_blocks(matrix(128, 256), E4M3, (128, 128))
    assert (q.t().dequantize() == q.dequantize().t()).all()


def test_a_matrix_without_whole_blocks_is_refused():
    with pytest.raises(ValueError, match=r"shape \(4, 100\).*blocks of 1x128"):
        quantize_blocks(torch.ones(4, 100), E4M3)


def test_scale_with_margin_and_without_an_amax():
    amax = torch.tensor([2.0, 0.0, torch.inf, torch.nan, 1e-45])
    scale = scale_from_amax(amax, E4M3, margin=1, fallback=torch.full((5,), 7.0))
    assert scale.tolist()[:4] == [112.0, 7.0, 7.0, 7.0]
    assert scale[4] == torch.finfo(torch.float32).max
    assert scale_from_amax(torch.tensor(3.0), E4M3, power_of_2=True) == 128  # of 149.3
    assert amax_of(torch.tensor([1.0, -3.0], dtype=torch.bfloat16)) == 3


@pytest.mark.parametrize("algo, expected", [
    ("max", [448 / 4, 448 / 4, 448 / 4, 448 / 2]),
    ("most_recent", [448 / 4, 448, 448 / 2, 448 / 2]),
    (lambda history: history.sum(0), [448 / 4, 448 / 5, 448 / 7, 448 / 5]),
])
def test_the_history_over_four_steps(algo, expected):
    history, scale, seen = torch.zeros(3, 1), torch.ones(1), []
    for amax in (4.0, 1.0, 2.0, 2.0):
        history[0] = amax
        history, scale = update_history(history, scale, E4M3, algo=algo)
        seen.append(scale.item())
    assert seen == pytest.approx(expected)
    assert history[0] == 0


@pytest.mark.parametrize("algo, expected", [
    ("max", [448 / 4] * 6),  # the infinity is among the last three steps until the end
    ("most_recent", [448 / 4, 448 / 4, 448 / 2, 448 / 2, 448, 448]),
])
def test_an_infinite_amax_enters_the_history_and_a_zero_does_not(algo, expected):
    history, scale, seen = torch.zeros(4, 1), torch.ones(1), []
    for amax in (4.0, torch.inf, 2.0, 0.0, 1.0, torch.nan):
        history[0] = amax
        history, scale = update_history(history, scale, E4M3, algo=algo)
        seen.append(scale.item())
    assert seen == pytest.approx(expected)
    assert history[:, 0].tolist()[:3] == [0, 2, 1]  # the zero has pushed nothing out
    assert history[3].isnan()
    history[0] = 8.0
    assert update_history(history, scale, E4M3)[1] == 448 / 8  # NaN loses against any number


def test_tensors_of_one_module_have_histories_of_their_own():
    history = torch.tensor([[4.0, 0.0], [1.0, 2.0], [3.0, 5.0]])
    history, scale = update_history(history, torch.ones(2), E4M3)
    assert history.tolist() == [[0.0, 0.0], [3.0, 2.0], [4.0, 5.0]]
    assert scale.tolist() == [448 / 4, 1.0]  # the second tensor was not used


@pytest.mark.parametrize("wrong, text", [
    (lambda: DelayedScaling(fp8_format=Format.E5M2), "Format.HYBRID"),
    (lambda: DelayedScaling(amax_history_len=0), "amax_history_len=0: expected at least 1"),
    (lambda: DelayedScaling(amax_compute_algo="mean"), "'mean': expected \"max\", \"most_recent\""),
    (lambda: Float8BlockScaling(fp8_format="e4m3"), "fp8_format=e4m3"),
])
def test_bad_recipes(wrong, text):
    with pytest.raises(ValueError, match=text):
        wrong()

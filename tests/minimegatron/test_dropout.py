"""Masks depend on what they are for, and on nothing else."""

import pytest
import torch

from minimegatron.dropout import Dropout


def draw(p=0.1, seed=1, iteration=2, samples=range(8), layer=3, site=1, positions=4096, heads=None,
         start=0):
    heads = None if heads is None else torch.tensor(list(heads))
    return Dropout(seed, iteration, torch.tensor(list(samples))).keep(
        p, layer, site, positions, heads, start)


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9])
def test_the_rate(p):
    keep = draw(p, positions=100_000)
    # Five standard deviations of a binomial with 800,000 draws.
    assert abs(keep.float().mean().item() - (1 - p)) <= 5 * (p * (1 - p) / keep.numel()) ** 0.5


def test_a_sample_s_mask_does_not_depend_on_its_neighbors():
    whole = draw(heads=range(12))
    assert torch.equal(draw(samples=[5, 2], heads=[7, 3]), whole[[5, 2]][:, [7, 3]])


@pytest.mark.parametrize("other", [
    {"seed": 2}, {"iteration": 3}, {"samples": range(8, 16)}, {"layer": 4}, {"site": 2}])
def test_every_part_of_the_key_matters(other):
    agree = (draw(0.5) == draw(0.5, **other)).float().mean().item()
    assert abs(agree - 0.5) < 0.02


def test_masks_are_not_correlated():
    heads = draw(0.5, positions=65536, heads=range(12)).view(96, -1).float() * 2 - 1
    products = heads @ heads.t() / heads.shape[1]
    products.fill_diagonal_(0)
    assert products.abs().max() < 6 / 256  # six standard deviations
    shifted = torch.stack([(heads[0] * heads[0].roll(k)).mean() for k in range(1, 64)])
    assert shifted.abs().max() < 6 / 256


def test_an_odd_number_of_positions():
    assert torch.equal(draw(positions=7), draw(positions=8)[:, :7])


@pytest.mark.parametrize("start, positions", [(0, 40), (10, 30), (7, 12), (7, 13), (99, 1)])
def test_a_part_of_the_positions_has_the_whole_s_mask(start, positions):
    part = draw(0.5, positions=positions, start=start)
    assert torch.equal(part, draw(0.5, positions=100)[:, start:start + positions])

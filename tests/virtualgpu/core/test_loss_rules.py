"""Bytes and launches of loss functions, counted by hand from their shapes."""

import pytest
import torch.nn.functional as F

from virtualgpu.core.rules import COSTS

from .counted import INT, counted, meta

SIZE = 6 * 10 * 4  # bytes of inputs of [6, 10]
LOSSES = {
    "mse_loss": F.mse_loss, "smooth_l1_loss": F.smooth_l1_loss, "huber_loss": F.huber_loss,
    "binary_cross_entropy": F.binary_cross_entropy}


@pytest.mark.parametrize("name", LOSSES)
def test_an_elementwise_loss(name):
    """Input and target are read and the losses written; two more kernels read these and write one
    number."""
    for reduction, result in (("none", (3 * SIZE, 1)), ("mean", (4 * SIZE + 4, 3)),
                              ("sum", (4 * SIZE + 4, 3))):
        assert counted(lambda how=reduction: LOSSES[name](meta(6, 10), meta(6, 10), reduction=how),
                       f"aten.{name}") == result


@pytest.mark.parametrize("name", LOSSES)
def test_an_elementwise_loss_s_backward_pass(name):
    """One gradient, input, and target are read; the input's gradient is written. All but the
    binary cross-entropy fill it with zeros first, as a V100's trace shows for mse_loss."""
    def program():
        LOSSES[name](meta(6, 10, grad=True), meta(6, 10)).backward(meta(()))
    fills = name != "binary_cross_entropy"
    assert counted(program, f"aten.{name}_backward") == (4 + (3 + fills) * SIZE, 1 + fills)


@pytest.mark.parametrize(("weights", "size", "kernels"), [
    # log_sigmoid and 1 - target read one operand each, two operations in place read two; all write
    # one. The mean is a sum in two kernels.
    ({}, 2 * 2 * SIZE + 2 * 3 * SIZE + SIZE + 4, 6),
    ({"weight": (6, 10)}, 2 * 2 * SIZE + 3 * 3 * SIZE + SIZE + 4, 7),  # a product in place
    # pos_weight - 1 of 40 bytes, its product with the target, + 1 in place, a product in place.
    ({"pos_weight": (10,)},
     2 * 2 * SIZE + 2 * 3 * SIZE + 2 * 40 + (40 + 2 * SIZE) + 2 * SIZE + 3 * SIZE + SIZE + 4, 10),
])
def test_binary_cross_entropy_with_logits(weights, size, kernels):
    def program():
        F.binary_cross_entropy_with_logits(
            meta(6, 10), meta(6, 10), **{name: meta(*shape) for name, shape in weights.items()})
    assert counted(program, "aten.binary_cross_entropy_with_logits") == (size, kernels)


def classified(name, *shape, target):
    """Bytes and launches of an operation of the cross-entropy of log-probabilities."""
    def program():
        F.nll_loss(meta(*shape, grad=True), meta(*target, dtype=INT)).backward(meta(()))
    return counted(program, name)


def test_the_negative_log_likelihood_reads_one_element_per_target():
    """Six targets of 8 bytes, six elements of 4; the loss and the targets' weight are written."""
    assert classified("aten.nll_loss_forward", 6, 1000, target=(6,)) == (6 * 8 + 6 * 4 + 8, 1)
    assert classified("aten.nll_loss2d_forward", 2, 1000, 3, 5, target=(2, 3, 5)) == (
        30 * 8 + 30 * 4 + 8, 1)


def test_its_gradient_is_zero_but_for_the_targets():
    """The gradient of 24,000 bytes is filled; six elements are written in it. One gradient, six
    targets, and their weight are read."""
    assert classified("aten.nll_loss_backward", 6, 1000, target=(6,)) == (
        24000 + 6 * 4 + 4 + 6 * 8 + 4, 2)
    assert classified("aten.nll_loss2d_backward", 2, 1000, 3, 5, target=(2, 3, 5)) == (
        4 * 30000 + 30 * 4 + 4 + 30 * 8 + 4, 2)


def test_every_rule_is_counted():
    assert {name for name in COSTS if "_loss" in name or "cross_entropy" in name} == {
        *(f"aten.{name}{end}" for name in (*LOSSES, ) for end in ("", "_backward")),
        *(f"aten.nll_loss{end}" for end in ("_forward", "_backward", "2d_forward", "2d_backward")),
        "aten.binary_cross_entropy_with_logits"}

"""Cost of the kernels of loss functions (ATen/native/Loss.cpp and ATen/native/cuda/Loss.cu)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.core.rules import KernelWork, Rule, moved, read_and_write, tensors


def elementwise(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """mse_loss(input, target, .., reduction) and its like: one kernel, then the reduction."""
    return _reduced(sum(map(moved, tensors(arguments))), 1, arguments[0], results[0])


def filled_backward(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Count mse_loss_backward(grad, input, target, ..) and its like: the result is filled with
    zeros, and then computed."""
    work = read_and_write(arguments, results)
    return work._replace(bytes=work.bytes + sum(map(moved, results)), kernels=2)


def with_logits(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction).

    Its kernels are log_sigmoid and 1 - target, which read one operand, and an in-place
    multiplication and subtraction, which read two. `weight` is one more in-place multiplication.
    `pos_weight` is decremented, multiplied by the target, incremented in place, and multiplied in
    place.
    """
    weight, pos_weight = (*arguments[2:4], None, None)[:2]
    weighted, positive = weight is not None, pos_weight is not None
    passes = 2 + 2 + 3 + 2 + 3 * weighted + (2 + 2 + 3) * positive
    size = passes * moved(arguments[0]) + 3 * sum(map(moved, tensors([pos_weight])))
    return _reduced(size, 4 + weighted + 4 * positive, arguments[0], results[0])


def _reduced(size: int, kernels: int, given: torch.Tensor, result: torch.Tensor) -> KernelWork:
    """Cost of a loss: its elementwise kernels and, if it is reduced, a reduction in two kernels, as
    in aten.sum.

    Args:
        size: bytes that the elementwise kernels move, without the last one's result.
        kernels: number of elementwise kernels.
        given: the input.
        result: the loss.
    """
    if result.shape == given.shape:
        return KernelWork(size + moved(result), kernels)
    return KernelWork(size + 2 * moved(given) + moved(result), kernels + 2)


def nll_loss(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """nll_loss_forward(input, target, weight, ..): reads one element of the input per target."""
    selected = arguments[1].numel() * arguments[0].element_size()
    return KernelWork(selected + sum(map(moved, tensors(arguments[1:]))) + sum(map(moved, results)))


def nll_loss_backward(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """nll_loss_backward(grad, input, target, weight, ..): zeroes the result and writes one element
    per target; does not read the input."""
    grad, given, *others = arguments
    selected = arguments[2].numel() * given.element_size()
    read = moved(grad) + sum(map(moved, tensors(others)))
    return KernelWork(read + sum(map(moved, results)) + selected, kernels=2)


LOSS_RULES: dict[str, Rule] = {
    "aten.binary_cross_entropy_with_logits": with_logits,
    "aten.nll_loss_forward": nll_loss, "aten.nll_loss_backward": nll_loss_backward,
    "aten.nll_loss2d_forward": nll_loss, "aten.nll_loss2d_backward": nll_loss_backward,
}
LOSS_RULES |= {f"aten.{name}": elementwise for name in (
    "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy")}
LOSS_RULES |= {f"aten.{name}_backward": filled_backward for name in (
    "mse_loss", "smooth_l1_loss", "huber_loss")}
LOSS_RULES["aten.binary_cross_entropy_backward"] = read_and_write

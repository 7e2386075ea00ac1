"""Quantities of a step for --log-num-zeros-in-grad and --log-params-norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from minimegatron.logging.report import Report

if TYPE_CHECKING:
    from minimegatron.logging.step_log import StepLog
    from minimegatron.optim.optimizer import Optimizer


class Quantities(Report):
    """Adds the number of zeros and the parameters' norm to the log line."""

    def quantities(self, log: StepLog) -> dict[str, float | None]:
        return read_quantities(log)


def read_quantities(log: StepLog) -> dict[str, float | None]:
    """Return the quantities that the flags ask for, by their names in `iteration_line`.

    Every rank must call it, after the log's last step.
    """
    ctx, optimizer, values = log.ctx, log.optimizer, {}
    if ctx.config.log_num_zeros_in_grad:
        values["zeros"] = ctx.read(num_zeros(optimizer))
    if ctx.config.log_params_norm:
        values["params_norm"] = ctx.read(params_norm(optimizer))
    return values


def params_norm(optimizer: Optimizer) -> torch.Tensor:
    """Return the Euclidean norm of the whole model's parameters, fp32, one element; collective."""
    return optimizer.model_norm(optimizer.param_buffer[part.buffer]
                                for part in optimizer.ranges if part.counted)


def num_zeros(optimizer: Optimizer) -> torch.Tensor:
    """Count the zeros in the whole model's gradient, int64, one element; collective."""
    grads = optimizer.ddp.grad_buffer
    counted = (grads[part.buffer] for part in optimizer.ranges if part.counted)
    zeros = sum(((piece == 0).sum() for piece in counted),
                start=grads.new_zeros((), dtype=torch.int64))
    for group in optimizer.norm_groups:
        group.all_reduce(zeros)
    return zeros

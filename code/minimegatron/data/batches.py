"""Micro-batches: select this rank's samples of each step and copy them to the device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from minimegatron.context import Context, MicroBatch
from minimegatron.dropout import Dropout
from minimegatron.errors import UserError


def sample_numbers(consumed: int, micro_batch: int, size: int, replica: int, replicas: int
                   ) -> range:
    """Return the samples of one rank's micro-batch, in Megatron's order.

    A global batch is split into micro-batches first, and each of these across the replicas, so a
    step sees the same samples in every layout.

    Args:
        consumed: samples of all steps before.
        micro_batch: number of the micro-batch in the step.
        size: --micro-batch-size.
        replica: data-parallel rank.
        replicas: data-parallel size.
    """
    start = consumed + (micro_batch * replicas + replica) * size
    return range(start, start + size)


class Batches:
    """Draws the micro-batches of consecutive steps from a data set of {"text": int64 [s + 1]}."""

    def __init__(self, ctx: Context, dataset: Sequence[dict], eod: int, name: str) -> None:
        self.ctx, self.dataset, self.eod, self.name = ctx, dataset, eod, name

    def step(self, consumed: int, iteration: int, train: bool = True) -> list[MicroBatch]:
        """Return this rank's micro-batches of a step.

        Args:
            consumed: samples of all steps before.
            iteration: the step, which the dropout mask depends on.
            train: whether to use dropout. Evaluation starts over at the first sample when none is
                left, because a run that resumes with other intervals may need more.

        Raises UserError if no training samples are left.
        """
        config, replicas = self.ctx.config, self.ctx.grid.dp
        end = consumed + config.global_batch_size
        if train and end > len(self.dataset):
            raise UserError(f"the {self.name} data has {len(self.dataset)} samples, and the batch "
                            f"after sample {consumed} needs {end}")
        return [self.micro_batch(
                sample_numbers(consumed, k, config.micro_batch_size, replicas.index, replicas.size),
                iteration, train) for k in range(config.num_micro_batches)]

    def micro_batch(self, numbers: range, iteration: int, train: bool) -> MicroBatch:
        """Return the micro-batch of the given samples; the other arguments are those of `step`."""
        config, ctx = self.ctx.config, self.ctx
        dropout = None
        if train and (config.hidden_dropout > 0 or config.attention_dropout > 0):
            dropout = Dropout(config.seed, iteration, ctx.tensor(torch.tensor(list(numbers))))
        if 0 < ctx.grid.pp.index < ctx.grid.pp.size - 1:
            return MicroBatch(None, None, None, dropout)  # hidden states come from the stage before
        samples = [self.dataset[n % len(self.dataset)]["text"] for n in numbers]
        text = torch.from_numpy(np.stack(samples)).long()
        tokens, labels = text[:, :-1], text[:, 1:]
        mask = torch.ones(tokens.shape)
        if config.eod_mask_loss:
            mask[tokens == self.eod] = 0.0
        return MicroBatch(ctx.tensor(tokens), ctx.tensor(labels), ctx.tensor(mask), dropout)

"""The course's versions of files in mytrainer/, which my_trainer.py uses until they are written.

OneProcess takes the place of ddp.py, join_ranks and own_samples of launch.py, MixedPrecision of
precision.py, and train of train.py. They solve exercises, so labs 04 and 05 mask this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer.flags import LoopConfig
from minimegatron.context import MicroBatch
from minimegatron.data.batches import sample_numbers
from minimegatron.initialize import join


class OneProcess(nn.Module):
    """DataParallel's interface for a single process, which has nothing to communicate."""

    def __init__(self, module: nn.Module, all_reduce: Callable | None = None) -> None:
        super().__init__()
        self.module = module

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        return self.module(batch)

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def begin(self, samples: int) -> None:
        pass

    def finish(self) -> None:
        pass


def join_ranks(config: LoopConfig) -> None:
    """Create the default process group; a rank on a GPU communicates with NCCL, others with Gloo.

    torchrun sets RANK, WORLD_SIZE, and the address where the ranks rendezvous.
    """
    join(config, timedelta(minutes=config.distributed_timeout_minutes),
         "nccl" if config.device == "cuda" else "gloo")


def own_samples(consumed: int, batch: int, rank: int, ranks: int) -> range:
    """Return the numbers of a rank's samples in the step that follows `consumed` samples.

    Args:
        consumed: samples of all steps before.
        batch: samples per step, of all ranks together; divisible by `ranks`.
        rank: this rank.
        ranks: the number of ranks.
    """
    return sample_numbers(consumed, 0, batch // ranks, rank, ranks)


class MixedPrecision:
    """An optimizer over fp32 master weights. Your precision.py takes the place of this class.

    16-bit parameters have fp32 copies, which are updated and then rounded (Micikevicius et al.
    2018, section 3.1); fp32 parameters are their own master weights.
    """

    def __init__(self, parameters: Iterable[nn.Parameter],
                 make_optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
        """Create the master weights.

        Args:
            parameters: those of the model.
            make_optimizer: returns an optimizer, given the master weights in the same order.
        """
        self.parameters = list(parameters)
        for parameter in self.parameters:  # micro-batches add up in fp32, as in Megatron-LM
            parameter.grad_dtype = torch.float32
        self.masters = [parameter if parameter.dtype == torch.float32 else
                        parameter.detach().float() for parameter in self.parameters]
        self.optimizer = make_optimizer(self.masters)

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def zero_grad(self) -> None:
        for parameter in (*self.parameters, *self.masters):
            parameter.grad = None

    def step(self) -> None:
        """Update the master weights, and round them to the parameters."""
        pairs = [pair for pair in zip(self.parameters, self.masters, strict=True)
                 if pair[0] is not pair[1]]
        for parameter, master in pairs:
            master.grad = parameter.grad
        self.optimizer.step()
        for parameter, master in pairs:
            parameter.data.copy_(master)


def train(model: nn.Module, optimizer: torch.optim.Optimizer,
          batches: Callable[[int], Sequence[MicroBatch]], learning_rate: Callable[[int], float],
          log: Callable[[int, torch.Tensor, torch.Tensor, bool], None], args: LoopConfig,
          scaler: object | None = None) -> None:
    """Train for args.train_iters steps. Your train.py takes the place of this function.

    Args:
        model: in DataParallel or OneProcess; returns the mean loss of a micro-batch.
        optimizer: updates the parameters; has the methods of a PyTorch optimizer.
        batches: returns this rank's micro-batches of the next step, given the samples consumed by
            all steps before.
        learning_rate: returns the learning rate of the next step, given the same.
        log: called after each step with its number, from 1, and the loss of the global batch and
            the gradient norm before clipping, each as a tensor, and whether it was skipped.
        args: the flags.
        scaler: your LossScaler; None without --fp16.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = args.samples[rank] if args.samples is not None else args.global_batch_size // ranks
    share, consumed, advanced = own / args.global_batch_size, 0, 0  # samples
    device = next(model.parameters()).device
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(advanced)
        optimizer.zero_grad()
        if args.samples is not None:
            model.begin(own)  # before the backward pass, which sends the gradients
        loss, micro_batches = torch.zeros((), device=device), batches(consumed)
        for number, batch in enumerate(micro_batches, start=1):
            # Gradients accumulate locally; only the last backward pass starts all-reduces.
            with nullcontext() if number == len(micro_batches) else model.no_sync():
                part = model(batch) / len(micro_batches)
                (part if scaler is None else part * scaler.scale).backward()
            loss += part.detach() * share
        model.finish()  # from here on, every rank has the gradient of the global batch
        skipped = scaler is not None and scaler.unscale(model.parameters())
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
        if not skipped:
            optimizer.step()
            advanced += args.global_batch_size
        if scaler is not None:
            scaler.update(skipped)
        consumed += args.global_batch_size
        dist.all_reduce(loss)
        log(iteration, loss, norm, skipped)

"""Test the pieces of lab 04 and their extended versions: two ranks must match a single process."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn

RANKS = 2


class Wrong(Exception):
    """Raised if a piece computes something wrong. The message does not name the file."""


def test_collectives(module) -> None:
    """All-reduce tensors of several lengths, some of them not divisible by the number of ranks."""
    rank = dist.get_rank()
    for length in (1, 2, 5, 1000):
        tensor = (rank + 1.0) * torch.arange(1, length + 1)
        expected = torch.arange(1.0, length + 1) * RANKS * (RANKS + 1) / 2
        module.all_reduce(tensor)
        if not torch.equal(tensor, expected):
            raise Wrong(f"after all_reduce of a tensor of length {length} on {RANKS} ranks, rank "
                        f"{rank} has {short(tensor)} instead of {short(expected)}")


class TinyGPT(nn.Module):
    """A toy GPT: tied embeddings of 9 tokens, a width of 4, a layer norm, and a loss."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.norm = nn.Embedding(9, 4), nn.LayerNorm(4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.norm(self.words(tokens)) @ self.words.weight.t()
        return nn.functional.cross_entropy(logits, tokens.roll(1))


def test_ddp(module) -> None:
    """Compare the averaged gradients with those of a single process that has all the data."""
    rank, single = dist.get_rank(), TinyGPT(seed=0)
    micro_batches = torch.randint(9, (2, RANKS, 12), generator=torch.Generator().manual_seed(1))
    for batches in micro_batches:
        for batch in batches:
            (single(batch) / RANKS).backward()
    parallel = module.DataParallel(TinyGPT(seed=rank), bucket_mb=1e-5)
    compare("after the constructor, parameter {} differs from rank 0's", parallel, single,
            lambda parameter: parameter.data)
    with parallel.no_sync():
        parallel(micro_batches[0, rank]).backward()
    parallel(micro_batches[1, rank]).backward()
    parallel.finish()
    compare("after finish(), the gradient of {} is not the mean over the ranks", parallel, single,
            lambda parameter: parameter.grad)
    if hasattr(parallel, "begin"):
        _test_begin(parallel, micro_batches)


def test_new_ddp(module) -> None:
    """Test the version of ddp.py that takes unequal numbers of samples."""
    if not hasattr(module.DataParallel, "begin"):
        raise Wrong("DataParallel has no begin()")
    test_ddp(module)


def _test_begin(parallel: nn.Module, batches: torch.Tensor) -> None:
    """Take a step with two samples on rank 0 and one on rank 1.

    Args:
        parallel: the model in DataParallel, on this rank.
        batches: samples, [at least 2, ranks, length].
    """
    rank, single = dist.get_rank(), TinyGPT(seed=0)
    for batch in (batches[0, 0], batches[1, 0], batches[0, 1]):
        (single(batch) / 3).backward()
    parallel.zero_grad()
    parallel.begin(2 - rank)
    if rank == 0:
        with parallel.no_sync():
            (parallel(batches[1, 0]) / 2).backward()
    (parallel(batches[0, rank]) / (2 - rank)).backward()
    parallel.finish()
    compare("after begin() with two samples on rank 0 and one on rank 1, the gradient of {} is not "
            "the mean over all samples", parallel, single, lambda parameter: parameter.grad)


def test_launch(module) -> None:
    """Join again, and divide the samples of two steps."""
    dist.destroy_process_group()
    device = module.connect()
    if device != torch.device("cpu") or not dist.is_initialized():
        joined = "joins the other rank" if dist.is_initialized() else "joins no other rank"
        raise Wrong(f"on a CPU, connect() returns {device!r} and {joined}")
    rank = dist.get_rank()
    for consumed, batch in ((0, 4), (12, 6)):
        counts = torch.zeros(consumed + batch)
        own = list(module.own_samples(consumed, batch, rank, RANKS))
        counts[own] = 1
        dist.all_reduce(counts)
        if len(own) != batch // RANKS or counts.tolist() != [0] * consumed + [1] * batch:
            raise Wrong(f"own_samples({consumed}, {batch}, {rank}, {RANKS}) returns {own}; the "
                        f"ranks must share the samples from {consumed} to {consumed + batch - 1} "
                        "equally")


class Averaged(nn.Module):
    """A replica with DataParallel's interface, which averages gradients as they were computed.

    finish() replaces .grad by the mean of what the last backward pass left there, as if the
    gradients had been sent during that pass. So what a loop does to .grad before is lost.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module, self.sent = module, {}
        for parameter in module.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda one: self.sent.update({one: one.grad.clone()}))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.module(tokens)

    def no_sync(self) -> AbstractContextManager:
        return nullcontext()

    def finish(self) -> None:
        for parameter, gradient in self.sent.items():
            dist.all_reduce(gradient)
            parameter.grad = gradient / RANKS


def reference_step(single: nn.Module, batches: torch.Tensor, rate: float, clip: float
                   ) -> tuple[torch.Tensor, torch.Tensor]:
    """Take a step of SGD in a single process; return its loss and its norm before clipping.

    Args:
        single: the model, which is updated.
        batches: all samples of the global batch, [ranks, samples per rank, length].
        rate: learning rate.
        clip: the largest gradient norm.
    """
    single.zero_grad()
    loss = torch.stack([single(one) for one in batches.flatten(0, 1)]).mean()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(single.parameters(), clip)
    torch.optim.SGD(single.parameters(), lr=rate).step()
    return loss.detach(), norm


def test_train(module) -> None:
    """Compare what two steps log with what one process that has all the data would."""
    rank, clip, rates = dist.get_rank(), 0.3, (0.5, 0.25)
    data = torch.randint(9, (2, RANKS, 2, 12), generator=torch.Generator().manual_seed(1))
    model, lines = Averaged(TinyGPT(seed=0)), []
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    module.train(model, optimizer, lambda consumed: list(data[consumed // 4, rank]),
                 lambda consumed: rates[consumed // 4],
                 lambda iteration, loss, norm, skipped=False: lines.append(
                     [iteration, float(loss), float(norm)]),
                 SimpleNamespace(train_iters=2, global_batch_size=4, clip_grad=clip))
    single, expected = TinyGPT(seed=0), []
    for step, rate in enumerate(rates):
        loss, norm = reference_step(single, data[step], rate, clip)
        expected.append([step + 1, loss.item(), norm.item()])
    if not (len(lines) == 2 and torch.allclose(torch.tensor(lines), torch.tensor(expected),
                                               rtol=1e-4)):
        raise Wrong(f"two steps log {rounded(lines)} (iteration, loss, and gradient norm) instead "
                    f"of {rounded(expected)}")


class OverflowsOnce:
    """A loss scaler whose first step overflows."""

    def __init__(self) -> None:
        self.scale, self.told = 4.0, []

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        for parameter in parameters:
            parameter.grad /= math.inf if self.told == [] else self.scale
        return self.told == []

    def update(self, overflow: bool) -> None:
        self.told.append(bool(overflow))


def test_new_train(module) -> None:
    """Test the version of train.py with loss scaling: a skipped step, and one that is made."""
    if "scaler" not in inspect.signature(module.train).parameters:
        raise Wrong("train has no parameter scaler")
    test_train(module)
    rank, data = dist.get_rank(), torch.randint(9, (2, RANKS, 1, 12),
                                                generator=torch.Generator().manual_seed(1))
    model, lines, scaler = Averaged(TinyGPT(seed=0)), [], OverflowsOnce()
    module.train(model, torch.optim.SGD(model.parameters(), lr=9.0),
                 lambda consumed: list(data[consumed // 2, rank]), lambda samples: 0.5 + samples,
                 lambda iteration, loss, norm, skipped: lines.append(
                     [iteration, float(loss), float(norm), skipped]),
                 SimpleNamespace(train_iters=2, global_batch_size=2, clip_grad=0.3), scaler)
    single = TinyGPT(seed=0)
    loss, norm = reference_step(single, data[1], rate=0.5, clip=0.3)
    if scaler.told != [True, False] or [bool(line[3]) for line in lines] != [True, False]:
        raise Wrong("of two steps, the first overflows, but the scaler and the log learn "
                    f"{scaler.told} and {[line[3] for line in lines]}")
    if not torch.allclose(torch.tensor(lines[1][1:3]), torch.stack([loss, norm]),
                          rtol=1e-4):
        raise Wrong(f"the step after an overflow logs a loss of {lines[1][1]:.6g} and a gradient "
                    f"norm of {lines[1][2]:.6g} instead of {loss.item():.6g} and {norm.item():.6g}")
    compare("after a skipped step and another one, {} differs", model, single,
            lambda parameter: parameter.data)


def rounded(lines: list[list[float]]) -> str:
    return "; ".join(", ".join(f"{number:.6g}" for number in line) for line in lines) or "nothing"


def compare(text: str, parallel: nn.Module, single: nn.Module,
            select: Callable[[nn.Parameter], torch.Tensor | None]) -> None:
    """Raise Wrong unless this rank's parameters or gradients match a single process's.

    Args:
        text: the error message, with {} in place of the parameter's name.
        parallel: the model on this rank.
        single: the model of the single process.
        select: returns the tensor to compare, such as the gradient, given a parameter.
    """
    expected = dict(single.named_parameters())
    parameters = list(parallel.parameters())
    if len(parameters) != len(expected):
        raise Wrong(f"DataParallel has {len(parameters)} parameters, but the module that it wraps "
                    f"has {len(expected)}")
    for parameter, (of, other) in zip(parameters, expected.items(), strict=True):
        actual, right = select(parameter), select(other)
        if actual is None or not torch.allclose(actual, right, rtol=1e-4, atol=1e-7):
            shown = "None" if actual is None else short(actual)
            raise Wrong(f"{text.format(of)}: rank {dist.get_rank()} has {shown} instead of "
                        f"{short(right)}")


def short(tensor: torch.Tensor) -> str:
    """Return the first three elements of a tensor as text."""
    values = tensor.detach().flatten()
    more = ", ..." if values.numel() > 3 else ""
    return "[" + ", ".join(f"{value:.6g}" for value in values[:3].tolist()) + more + "]"

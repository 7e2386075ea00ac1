"""Build small models for lab 04, and train them in one process for comparison.

Parameters and batches are values of sines, so they are the same on every rank and machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

WIDTH = 6
RATE = 0.2  # learning rate of SGD


class Small(nn.Module):
    """Three linear layers with tanh between them, [b, 6] to [b, 6]."""

    def __init__(self, kind: str, seed: float) -> None:
        """Args:
            kind: "plain"; "tied" (the last layer has the first one's weight); "frozen" (the first
                layer is not trained); "unused" (one parameter is not in the forward pass).
            seed: the seed of the parameters.
        """
        super().__init__()
        self.first, self.middle, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        if kind == "tied":
            self.last.weight = self.first.weight
        if kind == "frozen":
            self.first.requires_grad_(False)
        if kind == "unused":
            self.spare = nn.Parameter(torch.empty(4))
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                angles = 1.3 * torch.arange(parameter.numel()) + 0.7 * seed + number
                parameter.copy_((0.5 * angles.sin()).view_as(parameter))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x).tanh()).tanh())


def batch(seed: float, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, both [samples, 6].

    Args:
        seed: the seed of the values.
        samples: the number of samples.
    """
    angles = torch.arange(samples * WIDTH).view(samples, WIDTH) + float(seed)
    return (0.37 * angles).sin(), (0.53 * angles).cos()


def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error (one element).

    Args:
        model: Small, or a module that wraps it.
        x: inputs [b, 6].
        y: targets [b, 6].
    """
    return (model(x) - y).square().mean()


def losses_of_one_process(kind: str, seeds: Sequence[float], samples: int, steps: int
                          ) -> list[list[float]]:
    """Train on the batches of all ranks; return the loss on each of them after each step.

    Args:
        kind: the kind of model, as for Small.
        seeds: the seeds of the ranks' batches; the first one is that of the model, too.
        samples: the number of samples in each batch.
        steps: the number of steps of SGD.
    """
    model = Small(kind, seeds[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    batches = [batch(seed, samples) for seed in seeds]
    losses: list[list[float]] = [[] for _ in seeds]
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model, *map(torch.cat, zip(*batches, strict=True))).backward()
        optimizer.step()
        for of_rank, one in zip(losses, batches, strict=True):
            of_rank.append(loss(model, *one).item())
    return losses


def gradient_norm_of_one_process(kind: str, seeds: Sequence[float], samples: int,
                                 offset: float = 0.0) -> float:
    """Return the norm of the gradient of the batches of all ranks.

    Args:
        kind: the kind of model, as for Small.
        seeds: one per rank; the first one is the seed of the model.
        samples: the number of samples in each batch.
        offset: added to the seeds of the batches.
    """
    model = Small(kind, seeds[0])
    batches = [batch(seed + offset, samples) for seed in seeds]
    loss(model, *map(torch.cat, zip(*batches, strict=True))).backward()
    return gradient_norm(model)


def gradient_norm(model: nn.Module) -> float:
    """Return the norm of all gradients together; a missing gradient counts as zeros."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()

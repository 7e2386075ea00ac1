"""Build small models for lab 04, and batches to train them on; find mistakes that only GPUs show.

Parameters and batches are values of sines, so they are the same on every rank and machine.
"""

from __future__ import annotations

from typing import NoReturn

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


class Unread(torch.Tensor):
    """A tensor whose values a program must not read, as if they were on a busy GPU."""

    def item(self) -> NoReturn:
        raise ValueError("the training loop reads the value of a loss: never call .item() in it, "
                         "nor float(), bool(), .tolist(), or .numpy(), because on a GPU, each "
                         "makes the CPU wait for all kernels launched so far")

    __float__ = __int__ = __bool__ = tolist = numpy = item


def gradient_norm(model: nn.Module) -> float:
    """Return the norm of all gradients together; a missing gradient counts as zeros."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.flatten() for gradient in gradients]).norm().item()


def require_current_gpu(device: torch.device) -> None:
    """Raise ValueError unless `device` is the GPU on which code without a number runs."""
    current = torch.cuda.current_device()
    if device.index != current:
        raise ValueError(f"connect() returns {device}, but the current GPU is cuda:{current}: call "
                         "torch.cuda.set_device with this rank's GPU. Otherwise, several ranks use "
                         "the same GPU for device='cuda', and NCCL fails with 'Duplicate GPU "
                         "detected'")

"""The learning-rate schedule: warm-up, then decay, both counted in samples."""

from __future__ import annotations

import math

import torch

from minimegatron.arguments import Config


class LearningRate:
    """The schedule, and how far the run is in it.

    The first step uses lr(0), which is 0 with a warm-up. The log shows the value after the step,
    lr(global batch size), as Megatron's does.

    Attributes:
        settings: under the names of Megatron's checkpoints.
        samples: samples so far, without those of skipped steps. Once a step may be skipped it is a
            tensor, because only the device knows.
    """

    def __init__(self, config: Config) -> None:
        self.settings = {
            "learning rate": config.lr, "minimum learning rate": config.min_lr,
            "warmup iterations": config.lr_warmup_samples,
            "total number of iterations": config.lr_decay_samples,
            "decay style": config.lr_decay_style,
        }
        self.samples: int | torch.Tensor = 0

    def value(self) -> torch.Tensor:
        """Return the learning rate after `samples` samples, fp64, one element."""
        peak, lowest, warmup, decay, style = self.settings.values()
        n = torch.as_tensor(self.samples, dtype=torch.float64)
        rising = (n / warmup).clamp(max=1.0) if warmup > 0 else torch.ones_like(n)
        if style == "constant":
            return peak * rising
        ratio = ((n - warmup) / (decay - warmup)).clamp(0.0, 1.0)
        if style == "inverse-square-root":
            slow = peak * (max(warmup, 1) / n.clamp(min=max(warmup, 1))).sqrt()
            falling = torch.where(n > decay, lowest, slow.clamp(min=lowest))
        else:
            left = 1 - ratio if style == "linear" else 0.5 * (torch.cos(math.pi * ratio) + 1)
            falling = lowest + left * (peak - lowest)
        return falling * rising

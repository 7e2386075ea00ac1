"""Adam with decoupled weight decay, clipping by the global norm, and the learning rate."""

from __future__ import annotations

import math

import torch

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.gradients import Gradients
from minimegatron.model import Stage
from minimegatron.timers import Timers


class Optimizer:
    """AdamW (Loshchilov & Hutter 2019) over one stage; biases and norms are not decayed."""

    def __init__(self, ctx: Context, stage: Stage) -> None:
        config = ctx.config
        self.clip = config.clip_grad
        parameters = list(stage.parameters())
        self.gradients = Gradients(parameters)
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(
            groups, lr=config.lr, betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps, fused=ctx.device.fused_adam, foreach=False)

    def step(self, lr: float, timers: Timers) -> torch.Tensor:
        """One update from the gradients' buffer. Returns their norm before clipping."""
        flat = self.gradients.flat
        with timers("optimizer-clip-main-grad"):
            norm = torch.linalg.vector_norm(flat)
            if self.clip > 0:
                # Tensor arithmetic: whether to clip is decided without reading the norm.
                flat.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self.adam.param_groups:
            group["lr"] = lr
        for parameter in self.gradients.parameters:
            parameter.grad = parameter.main_grad
        self.adam.step()
        for parameter in self.gradients.parameters:
            parameter.grad = None
        return norm


class LearningRate:
    """Warm-up and decay, counted in samples.

    The first step runs at lr(0), which is 0 under a warm-up; the log shows the value after the
    step, that is lr(batch).
    """

    def __init__(self, config: Config) -> None:
        self.settings = {
            "learning rate": config.lr, "minimum learning rate": config.min_lr,
            "warmup iterations": config.lr_warmup_samples,
            "total number of iterations": config.lr_decay_samples,
            "decay style": config.lr_decay_style,
        }
        self.override = config.override_lr_scheduler
        self.use_saved = config.use_checkpoint_lr_scheduler
        self.samples = 0

    def value(self) -> float:
        """The learning rate after `samples` samples."""
        peak, lowest, warmup, decay, style = self.settings.values()
        n = self.samples
        if warmup > 0 and n <= warmup:
            return peak * n / warmup
        if style == "constant":
            return peak
        if n > decay:
            return lowest
        ratio = (n - warmup) / (decay - warmup)
        left = 1 - ratio if style == "linear" else 0.5 * (math.cos(math.pi * ratio) + 1)
        return lowest + left * (peak - lowest)

    def state_dict(self) -> dict:
        return {**self.settings, "num_steps": self.samples}

    def load_state_dict(self, saved: dict) -> None:
        """Resume; raises UserError when the saved schedule is another one and no flag decides."""
        for name, value in self.settings.items():
            if self.use_saved:
                self.settings[name] = saved[name]
            elif not self.override and saved[name] != value:
                # The missing blank is upstream's.
                raise UserError(
                    f"AnnealingLR: class input value {value} and checkpointvalue {saved[name]} "
                    f"for {name} do not match; --override-lr-scheduler takes the command line's, "
                    "--use-checkpoint-lr-scheduler the checkpoint's")
        self.samples = saved["num_steps"]

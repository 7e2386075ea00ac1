"""Mixed precision: which type holds what, and a loss scale that finds its own size.

Micikevicius et al. 2018: the model computes in a 16-bit type, the optimizer keeps fp32 weights
("main" or "master" weights), because an update is often too small to change a 16-bit one. fp16 has
a narrow range (2^-24 to 65504), so the loss is multiplied by a scale before the backward pass and
the gradient divided by it after; a gradient that overflowed is thrown away and the scale lowered.
bf16 has fp32's range and 8 bits of precision: no scale, but sums of gradients in fp32.
"""

from __future__ import annotations

import torch

from minimegatron.context import Context


class LossScaler:
    """The factor on the loss, adapted to overflows by tensor arithmetic: no value is read.

    scale: fp32; growth: good steps since the last change; hysteresis: overflows still forgiven
    (both int32). All have one element and live on the device. With --loss-scale the scale stays.
    """

    def __init__(self, ctx: Context) -> None:
        config, on = ctx.config, ctx.device.torch_device
        self.dynamic = config.loss_scale is None
        self.lowest, self.window = config.min_loss_scale, config.loss_scale_window
        self.patience = config.hysteresis
        first = config.initial_loss_scale if self.dynamic else config.loss_scale
        self.scale = torch.full((), first, dtype=torch.float32, device=on)
        self.growth = torch.zeros((), dtype=torch.int32, device=on)
        self.hysteresis = torch.full((), self.patience, dtype=torch.int32, device=on)

    def update(self, overflow: torch.Tensor) -> None:
        """After a step. overflow: bool, one element, the same on every rank.

        An overflow costs hysteresis, and once that is used up halves the scale; `window` good
        steps in a row double it, and only they refill the hysteresis.
        """
        if not self.dynamic:
            return
        self.growth.copy_(torch.where(overflow, 0, self.growth + 1))
        self.hysteresis.sub_(overflow.int())
        halve = overflow & (self.hysteresis <= 0)
        double = self.growth == self.window
        halved = (self.scale / 2).clamp(min=self.lowest)
        higher = torch.where(double, 2 * self.scale, self.scale)
        self.scale.copy_(torch.where(halve, halved, higher))
        self.growth.masked_fill_(double, 0)
        self.hysteresis.masked_fill_(double, self.patience)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Under Megatron's names."""
        return {"scale": self.scale, "growth_tracker": self.growth,
                "hysteresis_tracker": self.hysteresis}

    def load_state_dict(self, saved: dict[str, torch.Tensor]) -> None:
        if self.dynamic:
            for name, tensor in self.state_dict().items():
                tensor.copy_(saved[name])

"""Dynamic loss scaling for fp16.

Mixed precision (Micikevicius et al. 2018) computes in a 16-bit type, and the optimizer keeps fp32
master weights, because an update is often too small to change a 16-bit weight. fp16 has a narrow
range, 2^-24 to 65504. So the loss is multiplied by a scale before the backward pass, and the
gradient is divided by it afterward. If a gradient overflows, the step is skipped and the scale is
lowered. bf16 has the range of fp32 and 8 significant bits. It needs no loss scale, but its
gradients are summed in fp32.
"""

from __future__ import annotations

import torch

from minimegatron.context import Context


class LossScaler:
    """The factor that multiplies the loss, adapted without reading a value from the device.

    Attributes (tensors of one element, on the device):
        scale: the factor, fp32. With --loss-scale it is constant.
        growth: steps without an overflow since the scale last changed, int32.
        hysteresis: overflows that remain before the scale is halved, int32.
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
        """Adapt the scale after a step.

        An overflow (bool, one element, the same on every rank) uses up one unit of hysteresis;
        without any left, it halves the scale. `window` steps in a row without an overflow double
        the scale and restore the hysteresis.
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

"""Optimizers of Apex: those of PyTorch with fused kernels, which read and write as much."""

from __future__ import annotations

import torch

from virtualgpu.packages.refusals import refuse, used


class FusedAdam(torch.optim.Adam):
    """Adam, or AdamW with adam_w_mode."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8,
                 adam_w_mode=True, weight_decay=0.0, amsgrad=False, set_grad_none=True,
                 capturable=False, master_weights=False) -> None:
        used("apex")
        refuse("FusedAdam", bias_correction=None if bias_correction else False,
               amsgrad=amsgrad or None, capturable=capturable or None,
               master_weights=master_weights or None)
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay,
                         fused=True, decoupled_weight_decay=adam_w_mode)
        self.set_grad_none = set_grad_none

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


class FusedSGD(torch.optim.SGD):
    """SGD, with and without momentum."""

    def __init__(self, params, lr=1e-3, momentum=0.0, dampening=0.0, weight_decay=0.0,
                 nesterov=False, **options) -> None:
        used("apex")
        refuse("FusedSGD", **{name: value or None for name, value in options.items()})
        super().__init__(params, lr=lr, momentum=momentum, dampening=dampening,
                         weight_decay=weight_decay, nesterov=nesterov, fused=True)

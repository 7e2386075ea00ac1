"""LayerNorm and RMSNorm of flash_attn, which add a residual in the same Triton kernel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from virtualgpu.packages.refusals import refuse


def layer_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None = None,
                  x1=None, weight1=None, bias1=None, eps=1e-6, dropout_p=0.0, rowscale=None,
                  prenorm=False, residual_in_fp32=False, zero_centered_weight=False,
                  is_rms_norm=False, return_dropout_mask=False, out_dtype=None, out=None,
                  residual_out=None):
    """Normalize x + residual; with prenorm, also return that sum.

    A residual is added by a kernel of its own: five passes over the activations, where Triton's
    fused kernel has four.
    """
    refuse("layer_norm_fn", x1=x1, weight1=weight1, bias1=bias1, rowscale=rowscale,
           return_dropout_mask=return_dropout_mask or None, out=out, residual_out=residual_out)
    if dropout_p:
        x = F.dropout(x, dropout_p)
    kept = torch.float32 if residual_in_fp32 else None
    total = x if residual is None else x + residual
    total = total if kept is None else total.to(kept)
    scale = (weight + 1.0 if zero_centered_weight else weight).to(total.dtype)
    shape = (x.shape[-1],)
    if is_rms_norm:
        y = F.rms_norm(total, shape, scale, eps)
        y = y if bias is None else y + bias
    else:
        y = F.layer_norm(total, shape, scale, None if bias is None else bias.to(total.dtype), eps)
    y = y.to(out_dtype or x.dtype)
    return (y, total) if prenorm else y


def rms_norm_fn(x: Tensor, weight: Tensor, bias: Tensor | None, **options):
    """Normalize by the root mean square; the options are those of layer_norm_fn."""
    return layer_norm_fn(x, weight, bias, **options, is_rms_norm=True)


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, hidden_size: int, eps=1e-5, dropout_p=0.0, zero_centered_weight=False,
                 device=None, dtype=None) -> None:
        super().__init__()
        self.eps, self.dropout_p, self.zero_centered_weight = eps, dropout_p, zero_centered_weight
        start = torch.zeros if zero_centered_weight else torch.ones
        self.weight = nn.Parameter(start(hidden_size, device=device, dtype=dtype))
        self.register_parameter("bias", None)

    def reset_parameters(self) -> None:
        (nn.init.zeros_ if self.zero_centered_weight else nn.init.ones_)(self.weight)

    def forward(self, x: Tensor, residual=None, prenorm=False, residual_in_fp32=False):
        return rms_norm_fn(x, self.weight, self.bias, residual=residual, eps=self.eps,
                           dropout_p=self.dropout_p if self.training else 0.0, prenorm=prenorm,
                           residual_in_fp32=residual_in_fp32,
                           zero_centered_weight=self.zero_centered_weight)

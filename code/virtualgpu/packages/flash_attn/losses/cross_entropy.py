"""The cross-entropy loss of flash_attn, with PyTorch's kernels."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from virtualgpu.packages.refusals import refuse


class CrossEntropyLoss(nn.Module):
    """Cross-entropy of logits [tokens, vocabulary] in fp32.

    The package's Triton kernel reads the logits in 16 bits; here they are converted first.
    """

    def __init__(self, ignore_index=-100, reduction="mean", label_smoothing=0.0, logit_scale=1.0,
                 lse_square_scale=0.0, inplace_backward=False, process_group=None,
                 return_z_loss=False) -> None:
        super().__init__()
        refuse("CrossEntropyLoss", process_group=process_group,
               lse_square_scale=lse_square_scale or None, return_z_loss=return_z_loss or None)
        self.options = {"ignore_index": ignore_index, "reduction": reduction,
                        "label_smoothing": label_smoothing}
        self.logit_scale = logit_scale

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        logits = input.float()
        logits = logits if self.logit_scale == 1.0 else logits * self.logit_scale
        return F.cross_entropy(logits, target, **self.options)

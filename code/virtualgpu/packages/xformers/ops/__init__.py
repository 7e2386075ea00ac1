"""The operations of xformers.ops."""

from torch import Tensor, nn

from virtualgpu.core.kernels import swiglu
from virtualgpu.packages.refusals import missing

from . import fmha
from .fmha import AttentionBias, LowerTriangularMask, memory_efficient_attention

__all__ = ["AttentionBias", "LowerTriangularMask", "SwiGLU", "fmha", "memory_efficient_attention"]
__getattr__ = missing("xformers.ops")


class SwiGLU(nn.Module):
    """The MLP of Llama: one GEMM for gate and up, SwiGLU in one kernel, and one GEMM."""

    def __init__(self, in_features: int, hidden_features: int, out_features: int | None = None,
                 bias: bool = True, *, _pack_weights: bool = True) -> None:
        super().__init__()
        self.w12 = nn.Linear(in_features, 2 * hidden_features, bias=bias)
        self.w3 = nn.Linear(hidden_features, out_features or in_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.w3(swiglu(self.w12(x)))

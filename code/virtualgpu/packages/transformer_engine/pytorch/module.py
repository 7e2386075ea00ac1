"""Linear layers, normalizations, and both together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from virtualgpu.core.kernels import swiglu
from virtualgpu.packages.refusals import refuse, used

from .fp8 import SCALES, Fp8Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "swiglu": swiglu}
GATED = ("swiglu",)


def one_gpu(name: str, options: dict) -> None:
    """Refuse options of a module that are not modeled."""
    quiet = {"sequence_parallel", "get_rng_state_tracker", "rng_tracker_name", "ub_name",
             "parameters_split", "delay_wgrad_compute", "set_parallel_mode", "tp_size", "tp_group",
             "parallel_mode", "symmetric_ar_type", "save_original_input", "seq_length",
             "micro_batch_size", "device", "name"}
    refuse(name, **{key: value for key, value in options.items()
                    if value and (key not in quiet or (key == "tp_size" and value > 1)
                                  or (key == "delay_wgrad_compute"))})


def initialized(weight: Tensor, init: Callable | None) -> nn.Parameter:
    (init or (lambda x: nn.init.normal_(x, 0.0, 0.023)))(weight)
    return nn.Parameter(weight)


def activation_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of the computation: autocast's, or that of the input."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, column: int) -> Tensor:
    """Return x W^T + b in FP8 inside of fp8_autocast, or else in the dtype of x.

    Args:
        x: [.., in].
        weight: [out, in].
        bias: [out], or None.
        column: the layer's first column in SCALES.
    """
    used("transformer_engine")
    dtype = activation_dtype(x)
    with torch.autocast("cuda", enabled=False):
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        if SCALES.recipe is None:
            return F.linear(x, weight, bias)
        SCALES.allocate(x.device)
        out = Fp8Linear.apply(x.flatten(0, -2), weight, bias, column)
        return out.unflatten(0, x.shape[:-1])


def normalize(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, is_rms: bool,
              zero_centered: bool) -> Tensor:
    """Return LayerNorm or RMSNorm of x [.., h] in one kernel, in the dtype of the computation."""
    used("transformer_engine")
    dtype = activation_dtype(x)
    with torch.autocast("cuda", enabled=False):
        x, weight = x.to(dtype), (weight + 1 if zero_centered else weight).to(dtype)
        if is_rms:
            return F.rms_norm(x, x.shape[-1:], weight, eps)
        return F.layer_norm(x, x.shape[-1:], weight, bias.to(dtype), eps)


class Linear(nn.Module):
    """A linear layer."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 init_method: Callable | None = None, return_bias: bool = False,
                 params_dtype: torch.dtype | None = None, device: object = "cuda",
                 **options) -> None:
        super().__init__()
        one_gpu("Linear", options)
        self.in_features, self.out_features = in_features, out_features
        self.return_bias, self.column = return_bias, SCALES.register()
        kind = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self.weight = initialized(torch.empty(out_features, in_features, **kind), init_method)
        self.bias = nn.Parameter(torch.zeros(out_features, **kind)) if bias else None

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_):
        if self.return_bias:
            return linear(inp, self.weight, None, self.column), self.bias
        return linear(inp, self.weight, self.bias, self.column)


class _Norm(nn.Module):
    is_rms = False

    def __init__(self, hidden_size: int, eps: float = 1e-5, sequence_parallel: bool = False,
                 params_dtype: torch.dtype | None = None, zero_centered_gamma: bool = False,
                 device: object = "cuda", dtype: torch.dtype | None = None, **options) -> None:
        super().__init__()
        one_gpu(type(self).__name__, options)
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        kind = {"device": device, "dtype": params_dtype or dtype or torch.get_default_dtype()}
        start = torch.zeros if zero_centered_gamma else torch.ones
        self.weight = nn.Parameter(start(hidden_size, **kind))
        self.bias = None if self.is_rms else nn.Parameter(torch.zeros(hidden_size, **kind))

    def forward(self, x: Tensor) -> Tensor:
        return normalize(x, self.weight, self.bias, self.eps, self.is_rms,
                         self.zero_centered_gamma)


class LayerNorm(_Norm):
    """LayerNorm over the last dimension."""


class RMSNorm(_Norm):
    """RMSNorm over the last dimension."""

    is_rms = True


class _Normalized(nn.Module):
    """A module that begins with a normalization, and has its parameters."""

    def _norm(self, size: int, eps: float, normalization: str, zero_centered: bool,
              kind: dict) -> None:
        if normalization not in ("LayerNorm", "RMSNorm"):
            refuse(type(self).__name__, normalization=normalization)
        self.eps, self.is_rms = eps, normalization == "RMSNorm"
        self.zero_centered_gamma = zero_centered
        start = torch.zeros if zero_centered else torch.ones
        self.layer_norm_weight = nn.Parameter(start(size, **kind))
        self.layer_norm_bias = None if self.is_rms else nn.Parameter(torch.zeros(size, **kind))

    def _normalize(self, x: Tensor) -> Tensor:
        return normalize(x, self.layer_norm_weight, self.layer_norm_bias, self.eps, self.is_rms,
                         self.zero_centered_gamma)


class LayerNormLinear(_Normalized):
    """A normalization and a linear layer."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, bias: bool = True,
                 normalization: str = "LayerNorm", init_method: Callable | None = None,
                 return_bias: bool = False, params_dtype: torch.dtype | None = None,
                 return_layernorm_output: bool = False, zero_centered_gamma: bool = False,
                 device: object = "cuda", **options) -> None:
        super().__init__()
        one_gpu("LayerNormLinear", options)
        kind = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self._norm(in_features, eps, normalization, zero_centered_gamma, kind)
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        self.column = SCALES.register()
        self.weight = initialized(torch.empty(out_features, in_features, **kind), init_method)
        self.bias = nn.Parameter(torch.zeros(out_features, **kind)) if bias else None

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_):
        x = self._normalize(inp)
        out = linear(x, self.weight, None if self.return_bias else self.bias, self.column)
        found = (out, *[self.bias] * self.return_bias, *[x] * self.return_layernorm_output)
        return found if len(found) > 1 else out


class LayerNormMLP(_Normalized):
    """A normalization, two linear layers, and the activation between them."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5,
                 bias: bool = True, normalization: str = "LayerNorm", activation: str = "gelu",
                 init_method: Callable | None = None,
                 output_layer_init_method: Callable | None = None, return_bias: bool = False,
                 params_dtype: torch.dtype | None = None, return_layernorm_output: bool = False,
                 zero_centered_gamma: bool = False, device: object = "cuda", **options) -> None:
        super().__init__()
        one_gpu("LayerNormMLP", options)
        if activation not in ACTIVATIONS:
            refuse("LayerNormMLP", activation=activation)
        kind = {"device": device, "dtype": params_dtype or torch.get_default_dtype()}
        self._norm(hidden_size, eps, normalization, zero_centered_gamma, kind)
        self.return_bias, self.return_layernorm_output = return_bias, return_layernorm_output
        self.activation, self.column = activation, SCALES.register()
        self.second = SCALES.register()
        wide = ffn_hidden_size * (2 if activation in GATED else 1)
        self.fc1_weight = initialized(torch.empty(wide, hidden_size, **kind), init_method)
        self.fc1_bias = nn.Parameter(torch.zeros(wide, **kind)) if bias else None
        self.fc2_weight = initialized(torch.empty(hidden_size, ffn_hidden_size, **kind),
                                      output_layer_init_method or init_method)
        self.fc2_bias = nn.Parameter(torch.zeros(hidden_size, **kind)) if bias else None

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_):
        x = self._normalize(inp)
        hidden = ACTIVATIONS[self.activation](linear(x, self.fc1_weight, self.fc1_bias,
                                                     self.column))
        out = linear(hidden, self.fc2_weight, None if self.return_bias else self.fc2_bias,
                     self.second)
        found = (out, *[self.fc2_bias] * self.return_bias, *[x] * self.return_layernorm_output)
        return found if len(found) > 1 else out

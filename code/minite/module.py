"""Linear layers and norms that an autocast context runs in FP8.

Parameters have Transformer Engine's names and initial values: weights from N(0, 0.023^2), biases 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minite.functional import QuantizedPair, Quantizers, fp8_linear
from minite.quantize import Quantized
from minite.recipes import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, Recipe
from minite.state import LinearState, current, end_backward, is_first_layer

Init = Callable[[Tensor], Any]
ACTIVATIONS = {"gelu": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}
_quantized_init: list[Recipe | None] = [None]


@contextlib.contextmanager
def quantized_model_init(enabled: bool = True, recipe: Recipe | None = None) -> Iterator[None]:
    """Create modules in the block that hold their weights in FP8 only.

    Each weight is a float8 parameter with a buffer NAME_scale_inv and a gradient in the module's
    dtype. An optimizer keeps its own master weights, and writes them back with `Module.set_weight`.

    Args:
        enabled: whether to hold weights in FP8.
        recipe: as in `autocast`, but not MXFP8BlockScaling, whose weights are rounded twice.

    Raises:
        ValueError: the recipe is MXFP8BlockScaling.
    """
    if enabled and isinstance(recipe, MXFP8BlockScaling):
        raise ValueError("recipe=MXFP8BlockScaling: weights would need a copy per direction; use "
                         "DelayedScaling, Float8CurrentScaling, or Float8BlockScaling")
    _quantized_init.append((recipe or DelayedScaling()) if enabled else None)
    try:
        yield
    finally:
        _quantized_init.pop()


fp8_model_init = quantized_model_init


def _weight_quantizer(recipe: Recipe) -> Any:
    """Return the quantizer of a stored weight; delayed scaling starts from the current amax."""
    if isinstance(recipe, DelayedScaling):
        recipe = Float8CurrentScaling(recipe.fp8_format)
    return Quantizers.of(recipe).weight


class Module(nn.Module):
    """A module with FP8 GEMMs and their state.

    `_extra_state` is in the state dict only once there is an amax history, so state dicts are
    interchangeable with those of nn.Linear and nn.LayerNorm.
    """

    def __init__(self, gemms: int, dtype: torch.dtype | None, device: Any) -> None:
        super().__init__()
        self.states = [LinearState() for _ in range(gemms)]
        self.factory_kwargs = {"dtype": dtype, "device": device}
        self.fp8_recipe: Recipe | None = None

    def _add_weight(self, name: str, rows: int, columns: int, init: Init | None) -> None:
        weight = torch.empty(rows, columns, **self.factory_kwargs)
        (init or (lambda w: nn.init.normal_(w, 0.0, 0.023)))(weight)
        setattr(self, name, nn.Parameter(weight))
        if _quantized_init[-1] is None:
            return
        self.fp8_recipe = _quantized_init[-1]
        self.fp8_recipe.check_shape(weight, name)
        quantized = _weight_quantizer(self.fp8_recipe)(weight)
        parameter = nn.Parameter(quantized.data)
        parameter.grad_dtype = weight.dtype
        setattr(self, name, parameter)
        self.register_buffer(f"{name}_scale_inv", quantized.scale_inv)

    def _add_vector(self, name: str, size: int, value: float = 0.0) -> None:
        setattr(self, name, nn.Parameter(torch.full((size,), value, **self.factory_kwargs)))

    @torch.no_grad()
    def set_weight(self, name: str, value: Tensor) -> None:
        """Quantize a new value into an FP8-only weight."""
        quantized = _weight_quantizer(self.fp8_recipe)(value)
        getattr(self, name).copy_(quantized.data)
        getattr(self, f"{name}_scale_inv").copy_(quantized.scale_inv)

    def _stored(self, name: str, recipe: Recipe) -> Quantized:
        """Return an FP8-only weight; raise ValueError unless it was created for the recipe."""
        if type(recipe) is not type(self.fp8_recipe):
            raise ValueError(f"recipe={type(recipe).__name__}: {name} was created in FP8 for "
                             f"{type(self.fp8_recipe).__name__}; use that recipe")
        data, scale_inv = getattr(self, name).detach(), getattr(self, f"{name}_scale_inv")
        block = None if scale_inv.dim() == 0 else (
            data.shape[0] // scale_inv.shape[0], data.shape[1] // scale_inv.shape[1])
        return Quantized(data, scale_inv, block)

    def _gemm(self, gemm: int, x: Tensor, name: str, weight: Tensor, bias: Tensor | None,
              is_first_microbatch: bool | None) -> Tensor:
        """Return x weight^T + bias in the precision of the innermost autocast context."""
        context, state = current(), self.states[gemm]
        if not context.enabled:
            if weight.dtype.itemsize == 1:
                weight = self._stored(name, self.fp8_recipe).dequantize(x.dtype)
            if context.calibrating:
                quantizers = state.quantizers(context, x.device)
                quantizers.input.observe(x)
                quantizers.weight.observe(weight)
            return F.linear(x, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        quantizers = state.quantizers(context, x.device)
        weights: QuantizedPair | None = None
        if weight.dtype.itemsize == 1:
            stored = self._stored(name, context.recipe)
            weights = stored, stored.t()
        else:
            context.recipe.check_shape(weight, name)
            weights = state.weights(quantizers.weight, weight, is_first_microbatch)
        needs_grad = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
        after_backward = end_backward if needs_grad and is_first_layer() else None
        return fp8_linear(x, weight, bias, quantizers, weights, after_backward=after_backward)

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        extra = {f"{key}.{i}": value for i, state in enumerate(self.states)
                 for key, value in state.state_dict().items()}
        if extra:
            destination[f"{prefix}_extra_state"] = extra

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *rest: Any) -> None:
        extra = state_dict.pop(f"{prefix}_extra_state", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)
        for i, state in enumerate(self.states if isinstance(extra, dict) else ()):
            state.load_state_dict({key.removesuffix(f".{i}"): value for key, value in extra.items()
                                   if key.endswith(f".{i}")})


class Linear(Module):
    """y = x weight^T + bias.

    Args:
        parameters_split: names of the parts of weight and bias, such as "query", each stored as a
            parameter of its own ("query_weight"). Parts are equal unless a dictionary sets sizes.
    """

    def __init__(self, in_features: int, out_features: int, *, init_method: Init | None = None,
                 bias: bool = True, params_dtype: torch.dtype | None = None,
                 parameters_split: tuple[str, ...] | dict[str, int] | None = None,
                 device: Any = None) -> None:
        super().__init__(1, params_dtype, device)
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        split = parameters_split or ("",)
        if not isinstance(split, dict):
            split = dict.fromkeys(split, out_features // len(split))
        if _quantized_init[-1] is not None and len(split) > 1:
            raise ValueError("parameters_split: weights in FP8 have one scale; with attention, "
                             "set fuse_qkv_params=True")
        self.parts = [f"{name}_" if name else "" for name in split]
        for part, rows in zip(self.parts, split.values(), strict=True):
            self._add_weight(f"{part}weight", rows, in_features, init_method)
            if bias:
                self._add_vector(f"{part}bias", rows)
        if not bias and parameters_split is None:
            self.register_parameter("bias", None)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., out_features].

        Args:
            inp: [..., in_features].
            is_first_microbatch: True quantizes the weight and caches it, False uses the cached one,
                and None quantizes it every time.
        """
        weights = [getattr(self, f"{part}weight") for part in self.parts]
        biases = [getattr(self, f"{part}bias") for part in self.parts] if self.use_bias else [None]
        weight, bias = (parts[0] if len(parts) == 1 else torch.cat(parts)
                        for parts in (weights, biases))
        return self._gemm(0, inp, "weight", weight, bias, is_first_microbatch)


class LayerNorm(nn.LayerNorm):
    """torch's layer norm under Transformer Engine's name."""


def _add_norm(module: Module, size: int, eps: float) -> None:
    module.eps = eps
    module._add_vector("layer_norm_weight", size, 1.0)
    module._add_vector("layer_norm_bias", size)


def _norm(module: Module, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], module.layer_norm_weight, module.layer_norm_bias,
                        module.eps)


class LayerNormLinear(Linear):
    """A norm followed by a linear layer; `options` are the arguments of Linear."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, **options: Any
                 ) -> None:
        super().__init__(in_features, out_features, **options)
        _add_norm(self, in_features, eps)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., out_features]; see Linear.forward."""
        return super().forward(_norm(self, inp), is_first_microbatch)


class LayerNormMLP(Module):
    """A norm followed by two linear layers with an activation between them."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, *,
                 init_method: Init | None = None, output_layer_init_method: Init | None = None,
                 bias: bool = True, activation: str = "gelu",
                 params_dtype: torch.dtype | None = None, device: Any = None) -> None:
        super().__init__(2, params_dtype, device)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: expected one of "
                             f"{', '.join(ACTIVATIONS)}")
        self.activation, self.use_bias = activation, bias
        _add_norm(self, hidden_size, eps)
        self._add_weight("fc1_weight", ffn_hidden_size, hidden_size, init_method)
        self._add_weight("fc2_weight", hidden_size, ffn_hidden_size, output_layer_init_method)
        if bias:
            self._add_vector("fc1_bias", ffn_hidden_size)
            self._add_vector("fc2_bias", hidden_size)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., hidden_size]; see Linear.forward."""
        biases = (self.fc1_bias, self.fc2_bias) if self.use_bias else (None, None)
        x = self._gemm(0, _norm(self, inp), "fc1_weight", self.fc1_weight, biases[0],
                       is_first_microbatch)
        return self._gemm(1, ACTIVATIONS[self.activation](x), "fc2_weight", self.fc2_weight,
                          biases[1], is_first_microbatch)

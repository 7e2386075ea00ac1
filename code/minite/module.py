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

from minite.functional import Quantizers, fp8_linear
from minite.quantize import BLOCK, Quantized
from minite.recipes import DelayedScaling, Float8CurrentScaling, MXFP8BlockScaling, Recipe
from minite.state import LinearState, current

Init = Callable[[Tensor], Any]
ACTIVATIONS = {"gelu": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu, "silu": F.silu}
_weight_recipes: list[Recipe | None] = [None]  # per quantized_model_init block


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
    _weight_recipes.append((recipe or DelayedScaling()) if enabled else None)
    try:
        yield
    finally:
        _weight_recipes.pop()


def _quantize_stored(weight: Tensor, recipe: Recipe) -> Quantized:
    """Quantize a weight that is held in FP8 only; delayed scaling starts from the current amax."""
    if isinstance(recipe, DelayedScaling):
        recipe = Float8CurrentScaling(recipe.fp8_format)
    return Quantizers.of(recipe).weight(weight)


class Module(nn.Module):
    """A module with FP8 GEMMs and their state.

    As in Transformer Engine, every state dict has `_extra_state`, which is empty without an amax
    history. So a checkpoint of nn.Linear, which has none, loads with strict=False only.
    """

    def __init__(self, gemms: int, params_dtype: torch.dtype | None = None, device: Any = None
                 ) -> None:
        super().__init__()
        self.factory_kwargs = {"dtype": params_dtype, "device": device}
        self.fp8_state = LinearState(gemms)
        self.fp8_recipe = _weight_recipes[-1]

    def _add_linear(self, part: str, rows: int, columns: int, init: Init | None, bias: bool
                    ) -> None:
        """Add the parameters of a linear layer, whose names begin with `part`."""
        name, weight = f"{part}weight", torch.empty(rows, columns, **self.factory_kwargs)
        (init or (lambda w: nn.init.normal_(w, 0.0, 0.023)))(weight)
        parameter = nn.Parameter(weight)
        if self.fp8_recipe is not None:
            self.fp8_recipe.check_shape(weight, name)
            quantized = _quantize_stored(weight, self.fp8_recipe)
            parameter = nn.Parameter(quantized.data)
            parameter.grad_dtype = weight.dtype
            self.register_buffer(f"{name}_scale_inv", quantized.scale_inv)
        self.register_parameter(name, parameter)
        self._add_vector(f"{part}bias", rows if bias else None)

    def _add_vector(self, name: str, size: int | None, value: float = 0.0) -> None:
        self.register_parameter(name, None if size is None else nn.Parameter(
            torch.full((size,), value, **self.factory_kwargs)))

    def _add_norm(self, size: int, eps: float) -> None:
        self.eps = eps
        self._add_vector("layer_norm_weight", size, 1.0)
        self._add_vector("layer_norm_bias", size)

    def _norm(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.layer_norm_weight, self.layer_norm_bias, self.eps)

    @torch.no_grad()
    def set_weight(self, name: str, value: Tensor) -> None:
        """Quantize a new value into an FP8-only weight."""
        quantized = _quantize_stored(value, self.fp8_recipe)
        getattr(self, name).copy_(quantized.data)
        getattr(self, f"{name}_scale_inv").copy_(quantized.scale_inv)

    def _stored(self, name: str, recipe: Recipe) -> Quantized:
        """Return an FP8-only weight; raise ValueError unless it was created for the recipe."""
        if type(recipe) is not type(self.fp8_recipe):
            raise ValueError(f"recipe={type(recipe).__name__}: {name} was created in FP8 for "
                             f"{type(self.fp8_recipe).__name__}; use that recipe")
        scale_inv = getattr(self, f"{name}_scale_inv")
        block = (BLOCK, BLOCK) if scale_inv.dim() else None
        return Quantized(getattr(self, name).detach(), scale_inv, block)

    def _joined(self, parts: list[str], kind: str) -> Tensor | None:
        """Return the parts of a weight or of a bias as one tensor; None without a bias."""
        tensors = [getattr(self, f"{part}{kind}") for part in parts]
        return tensors[0] if len(tensors) == 1 or tensors[0] is None else torch.cat(tensors)

    def _gemm(self, gemm: int, x: Tensor, parts: list[str], is_first_microbatch: bool | None
              ) -> Tensor:
        """Return x weight^T + bias in the precision of the innermost autocast context.

        Args:
            gemm: its number in the module.
            x: [..., k].
            parts: with what the names of its parameters begin.
            is_first_microbatch: see Linear.forward.
        """
        weight, bias = (self._joined(parts, kind) for kind in ("weight", "bias"))
        name = " + ".join(f"{part}weight" for part in parts)
        context, is_stored = current(), weight.dtype.itemsize == 1
        if not context.enabled:
            if is_stored:
                weight = self._stored(name, self.fp8_recipe).dequantize(x.dtype)
            if context.calibrating:
                quantizers = self.fp8_state.quantizers(context, gemm, x.device)
                quantizers.input.observe(x)
                quantizers.weight.observe(weight)
            return F.linear(x, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        quantizers = self.fp8_state.quantizers(context, gemm, x.device)
        if is_stored:
            stored = self._stored(name, context.recipe)
            weights = stored, stored.t()
        else:
            context.recipe.check_shape(weight, name)
            weights = self.fp8_state.weights(quantizers.weight, weight, is_first_microbatch, gemm)
        return fp8_linear(x, weight, bias, quantizers, weights)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return what the state dict has as `_extra_state`: amax histories and scales, if any."""
        return self.fp8_state.state_dict()

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        """Restore `_extra_state`; with strict loading, torch calls a missing one an error."""
        self.fp8_state.load_state_dict(state)


class Linear(Module):
    """y = x weight^T + bias.

    Args:
        parameters_split: names of the parts of weight and bias, such as "query", and their rows.
            Each part is stored as a parameter of its own ("query_weight").
    """

    def __init__(self, in_features: int, out_features: int, *, init_method: Init | None = None,
                 bias: bool = True, params_dtype: torch.dtype | None = None,
                 parameters_split: dict[str, int] | None = None, device: Any = None) -> None:
        super().__init__(1, params_dtype, device)
        self.in_features, self.out_features = in_features, out_features
        split = parameters_split or {"": out_features}
        if self.fp8_recipe is not None and len(split) > 1:
            raise ValueError("parameters_split: weights in FP8 have one scale; with attention, "
                             "set fuse_qkv_params=True")
        self.parts = [f"{name}_" if name else "" for name in split]
        for part, rows in zip(self.parts, split.values(), strict=True):
            self._add_linear(part, rows, in_features, init_method, bias)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., out_features].

        Args:
            inp: [..., in_features].
            is_first_microbatch: True quantizes the weight and caches it, False uses the cached one,
                and None quantizes it every time.
        """
        return self._gemm(0, inp, self.parts, is_first_microbatch)


class LayerNorm(nn.LayerNorm):
    """torch's layer norm under Transformer Engine's name."""

    def __init__(self, normalized_shape: int, eps: float = 1e-5, *,
                 params_dtype: torch.dtype | None = None, device: Any = None) -> None:
        super().__init__(normalized_shape, eps, dtype=params_dtype, device=device)


class LayerNormLinear(Linear):
    """A norm followed by a linear layer; `options` are the arguments of Linear."""

    def __init__(self, in_features: int, out_features: int, eps: float = 1e-5, **options: Any
                 ) -> None:
        super().__init__(in_features, out_features, **options)
        self._add_norm(in_features, eps)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., out_features]; see Linear.forward."""
        return super().forward(self._norm(inp), is_first_microbatch)


class LayerNormMLP(Module):
    """A norm followed by two linear layers with an activation between them.

    Args:
        activation: "gelu", "relu", or "silu".
        options: params_dtype and device, as in Linear.
    """

    def __init__(self, hidden_size: int, ffn_hidden_size: int, eps: float = 1e-5, *,
                 init_method: Init | None = None, output_layer_init_method: Init | None = None,
                 bias: bool = True, activation: str = "gelu", **options: Any) -> None:
        super().__init__(2, **options)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation={activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        self.activation = activation
        self._add_norm(hidden_size, eps)
        self._add_linear("fc1_", ffn_hidden_size, hidden_size, init_method, bias)
        self._add_linear("fc2_", hidden_size, ffn_hidden_size, output_layer_init_method, bias)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Return [..., hidden_size]; see Linear.forward."""
        x = self._gemm(0, self._norm(inp), ["fc1_"], is_first_microbatch)
        return self._gemm(1, ACTIVATIONS[self.activation](x), ["fc2_"], is_first_microbatch)

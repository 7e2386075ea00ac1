"""FP8 against torchao 0.18 and ml_dtypes, where PYTHONPATH has them: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minite.functional import Quantizers, fp8_linear
from minite.quantize import cast, quantize_mx
from minite.recipes import Float8CurrentScaling

pytestmark = pytest.mark.oracle


def matrix() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(256, 512) * 10 ** (torch.rand(256, 512) * 10 - 6)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_rounding(name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype, x = getattr(torch, name), matrix()
    largest = torch.finfo(dtype).max
    theirs = np.clip(x.numpy(), -largest, largest).astype(getattr(ml_dtypes, name))
    assert (cast(x, dtype).float().numpy() == theirs.astype(np.float32)).all()


def test_shared_exponents():
    pytest.importorskip("torchao")
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx
    exponents, data = to_mx(matrix(), torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    ours = quantize_mx(matrix(), torch.float8_e4m3fn)
    assert torch.equal(exponents.view(torch.uint8), ours.scale_inv.view(torch.uint8))
    assert torch.equal(data.view(torch.uint8).view(ours.data.shape), ours.data.view(torch.uint8))


def test_a_linear_layer_with_current_scaling():
    pytest.importorskip("torchao")
    from torchao.float8 import CastConfig, Float8LinearConfig, convert_to_float8_training
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 32, bias=False)
    weight = linear.weight.detach().clone().requires_grad_()
    e5m2 = CastConfig(target_dtype=torch.float8_e5m2)
    config = Float8LinearConfig(
        emulate=True, round_scales_to_power_of_2=True, cast_config_grad_output=e5m2,
        cast_config_grad_output_for_grad_weight=e5m2)
    theirs = convert_to_float8_training(torch.nn.Sequential(linear), config=config)
    x, dy = torch.randn(16, 64, requires_grad=True), torch.randn(16, 32)
    same = x.detach().clone().requires_grad_()
    y = theirs(x)
    ours = fp8_linear(same, weight, None, Quantizers.of(
        Float8CurrentScaling(use_power_2_scales=True)))
    for output in (y, ours):
        output.backward(dy)
    assert torch.equal(y, ours)
    assert torch.equal(x.grad, same.grad) and torch.equal(theirs[0].weight.grad, weight.grad)

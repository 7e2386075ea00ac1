"""Operations that PyTorch dispatches by device: plain torch on the CPU, modeled on virtual GPUs."""

import inspect

import pytest
import torch

from minimegatron import dropout
from minimegatron.device import virtual_kernels
from minimegatron.model import fp8_ops, ops

NAMES = sorted(name.removeprefix("minimegatron::") for name in torch._C._dispatch_get_all_op_names()
               if name.startswith("minimegatron::"))


def defined(name):
    modules = ops, dropout, fp8_ops
    return next(vars(module)[name] for module in modules if name in vars(module))


@pytest.mark.parametrize("name", NAMES)
def test_a_virtual_gpu_has_a_kernel_with_the_operation_s_arguments(name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"minimegatron::{name}", "AutogradMeta")
    arguments = [argument.name for argument in defined(name)._schema.arguments]
    assert arguments == list(inspect.signature(getattr(virtual_kernels, name)).parameters)
    assert defined(name).__doc__


def test_no_kernel_is_registered_without_an_operation():
    kernels = [name for name, value in vars(virtual_kernels).items()
               if inspect.isfunction(value) and name != "kernel"]
    assert sorted(kernels) == NAMES


def test_the_device_of_the_arguments_decides(virtual_device):
    """Dropout is one modeled kernel on a virtual GPU, and several of torch's on the CPU."""
    for device, modeled in ("cpu", 0), ("meta", 1):
        before = virtual_device.gpu.busy["virtualgpu.dropout_add"]
        x = torch.ones(4, 2, 8, device=device, requires_grad=True)
        keep = torch.ones(4, 2, 8, device=device, dtype=torch.bool)
        out = ops.dropout_add(x, x, keep, 0.5)
        out.sum().backward()
        assert out.device.type == x.grad.device.type == device
        assert (virtual_device.gpu.busy["virtualgpu.dropout_add"] > before) == modeled


def test_a_learning_rate_keeps_its_digits():
    """A number reaches the kernel as a double, not rounded to fp32."""
    weights, gradients = torch.randn(2, 100)
    theirs, rate = weights.clone().requires_grad_(), 1 / 3e3
    theirs.grad = gradients.clone()
    torch.optim.AdamW([theirs], lr=rate, fused=True, weight_decay=0.1).step()
    ops.adamw_(weights, gradients, torch.zeros(100), torch.zeros(100), torch.ones(()),
               torch.tensor(rate, dtype=torch.float64), beta1=0.9, beta2=0.999, eps=1e-8,
               weight_decay=0.1, skip=None)
    assert torch.equal(weights, theirs)

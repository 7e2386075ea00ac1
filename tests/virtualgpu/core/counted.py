"""The costs that the rules count for one operation, as a virtual GPU executes it."""

import torch

from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu

aten = torch.ops.aten
INT, HALF, BOOL = torch.int64, torch.bfloat16, torch.bool


def meta(*shape, dtype=torch.float32, grad=False):
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=grad)


def works(program):
    """Return the work of each operation that the program launches, by name; repeats count once."""
    with VirtualGpu(CARDS["h100-80gb"]) as gpu:
        program()
    assert not gpu.unknown, dict(gpu.unknown)
    return {plan.name: plan.work for plan in gpu._plans.values() if plan.kernels}


def counted(program, name):
    """Return bytes and kernel launches of the operation of this name."""
    work = works(program)[name]
    assert work.gemm is None and work.flops == 0
    return work.bytes, work.kernels

"""RMSNorm runs as CUDA's fused kernels, and small ones compute their values."""

import pytest
import torch
import torch.nn.functional as F

from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

FUSED = {"aten._fused_rms_norm", "aten._fused_rms_norm_backward"}
SHAPES = [((6, 10), (10,), True), ((2, 3, 4), (3, 4), True), ((5,), (5,), False)]


def normalized(device, shape, whole, weighted):
    """The output, and the gradients of the input and of the weight."""
    torch.manual_seed(1)
    x, weight, grad = torch.randn(shape), torch.rand(whole), torch.randn(shape)
    x, weight, grad = (one.to(device) for one in (x, weight, grad))
    given = [one.requires_grad_() for one in (x, weight)[:1 + weighted]]
    out = F.rms_norm(x, whole, weight if weighted else None, 1e-5)
    return out.detach(), *torch.autograd.grad(out, given, grad)


@pytest.mark.parametrize(("shape", "whole", "weighted"), SHAPES)
def test_values_are_those_of_the_cpu(shape, whole, weighted):
    (rank,) = run_ranks(parse("h100"), Settings(),
                        lambda: normalized("cuda", shape, whole, weighted))
    assert rank.error is None, rank.error
    for found, expected in zip(rank.value, normalized("cpu", shape, whole, weighted), strict=True):
        torch.testing.assert_close(found, expected)
    assert {name for name in rank.busy if "rms_norm" in name} == FUSED


def inference():
    with torch.inference_mode():
        F.rms_norm(torch.ones(6, 10, device="cuda"), (10,))


def mixed():
    """CUDA has no fused kernel for a weight of another dtype."""
    x, weight = torch.ones(6, 10, device="cuda"), torch.ones(10, device="cuda")
    return F.rms_norm(x.bfloat16(), (10,), weight).dtype


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize(("program", "runs", "not_run"), [
    (inference, "aten._fused_rms_norm", "aten.rsqrt"),
    (mixed, "aten.rsqrt", "aten._fused_rms_norm")])
def test_where_cuda_has_a_fused_kernel(program, runs, not_run):
    (rank,) = run_ranks(parse("h100"), Settings(), program)
    assert rank.error is None, rank.error
    assert runs in rank.busy and not_run not in rank.busy

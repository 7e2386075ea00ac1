"""What autograd keeps is counted once, without the weights."""

import torch
from torch import nn

from lab.notebook import saved


def test_each_memory_counts_once(capsys):
    expand, shrink = nn.Linear(64, 256), nn.Linear(256, 64)
    weights = [*expand.parameters(), *shrink.parameters()]
    x = torch.randn(8, 64, requires_grad=True)
    small = saved.show(lambda x: shrink(torch.relu(expand(x))), x, weights=weights)
    large = saved.show(lambda x: shrink(nn.functional.gelu(expand(x))), x, weights=weights)
    assert small == 4 * 8 * (64 + 256) and large == 4 * 8 * (64 + 2 * 256)
    out = capsys.readouterr().out
    assert "8x256 float32       8,192 bytes" in out and "10,240 bytes" in out


def test_what_a_function_of_one_s_own_saves():
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.arange(3))
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    found = saved.tensors(Doubled.apply, torch.ones(5, requires_grad=True))
    assert found == [saved.Saved((3,), "int64", 24)]


def test_nothing_is_kept_of_a_sum():
    assert saved.tensors(lambda x: x + x, torch.ones(5, requires_grad=True)) == []

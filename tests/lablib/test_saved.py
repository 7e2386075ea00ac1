"""lablib.saved: bytes that autograd saves, counted exactly."""

import threading

import pytest
import torch
from torch import nn

from lablib.saved import SavedTensors, show

KB = 1024


@pytest.fixture
def x():
    return torch.ones(256, requires_grad=True)  # 1 KB


def test_each_tensor_counts_once_and_until_the_backward(x):
    with SavedTensors() as saved:
        y = x.exp()  # keeps its result
        z = y * y.view(256)  # keeps the same storage twice
        assert saved.now == KB
        w = z.sin()  # keeps z
        assert saved.now == saved.peak == 2 * KB
        w.sum().backward()
    del y, z, w
    assert (saved.now, saved.peak) == (0, 2 * KB)


def test_a_result_that_is_dropped_is_not_kept(x):
    with SavedTensors() as saved:
        y = x.exp()  # keeps y itself
        del y
    assert (saved.now, saved.peak) == (0, KB)


def test_weights_are_not_activations():
    layer, data = nn.Linear(256, 256), torch.ones(1, 256)
    with SavedTensors() as everything:
        kept = layer(layer(data))
    assert everything.now == 256 * KB + 2 * KB
    with SavedTensors(layer.parameters()) as saved:
        kept = layer(layer(data))
    assert saved.now == 2 * KB
    del kept
    assert saved.now == 0


def test_nothing_is_counted_outside_and_without_gradients(x):
    with SavedTensors() as saved, torch.no_grad():
        x.exp()
    kept = x.exp()
    assert saved.peak == 0 and kept.requires_grad


def test_the_gradient_is_the_same(x):
    with SavedTensors():
        x.exp().sum().backward()
    torch.testing.assert_close(x.grad, torch.full((256,), torch.e))


def test_threads_count_into_one(x):
    saved, kept = SavedTensors(), []

    def work():
        with torch.autograd.graph.saved_tensors_hooks(saved.pack_hook, saved.unpack_hook):
            kept.extend(x.exp() for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert saved.now == 200 * KB
    kept.clear()
    assert saved.now == 0


def test_each_memory_counts_once(capsys):
    expand, shrink = nn.Linear(64, 256), nn.Linear(256, 64)
    weights = [*expand.parameters(), *shrink.parameters()]
    x = torch.randn(8, 64, requires_grad=True)
    small = show(lambda x: shrink(torch.relu(expand(x))), x, weights=weights)
    large = show(lambda x: shrink(nn.functional.gelu(expand(x))), x, weights=weights)
    assert small == 4 * 8 * (64 + 256) and large == 4 * 8 * (64 + 2 * 256)
    out = capsys.readouterr().out
    assert "8x256 float32       8,192 bytes" in out and "10,240 bytes" in out


def test_what_a_function_of_one_s_own_saves(capsys):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(torch.arange(3))
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    assert show(Doubled.apply, torch.ones(5, requires_grad=True)) == 24
    assert "3 int64            24 bytes" in capsys.readouterr().out


def test_nothing_is_kept_of_a_sum():
    assert show(lambda x: x + x, torch.ones(5, requires_grad=True)) == 0

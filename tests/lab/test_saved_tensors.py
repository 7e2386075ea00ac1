"""lab.notebook.saved_tensors: bytes that autograd keeps, counted exactly."""

import threading

import pytest
import torch
from torch import nn

from lab.notebook.saved_tensors import SavedTensors

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

"""torchgpipe_cpu: stages that share `cpu` work at the same time, in the caller's state."""

import threading

import pytest
import torch
import torchgpipe
from torch import nn
from torchgpipe.balance import balance_by_size

from lablib import torchgpipe_cpu
from lablib.saved import SavedTensors

CPU = torch.device("cpu")


class Probe(nn.Module):
    """Calls `see` with its input before it passes it on."""

    def __init__(self, see):
        super().__init__()
        self.see, self.linear = see, nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        self.see(y)
        return y


def pipeline(*layers, chunks=2, checkpoint="never"):
    return torchgpipe.GPipe(nn.Sequential(*layers), [1] * len(layers), chunks=chunks,
                            devices=["cpu"] * len(layers), checkpoint=checkpoint)


def test_a_stage_works_on_the_next_micro_batch_while_another_has_this_one():
    """They meet; torchgpipe's one thread for all would wait for itself."""
    both, calls = threading.Barrier(2, timeout=10), {"first": 0, "second": 0}

    def see(stage, meets_at):
        def look(_):
            calls[stage] += 1
            if calls[stage] == meets_at:
                both.wait()
        return look

    model = pipeline(Probe(see("first", 2)), Probe(see("second", 1)))
    assert model(torch.ones(2, 4)).shape == (2, 4)
    assert calls == {"first": 2, "second": 2}


def test_an_error_in_a_stage_arrives_and_leaves_no_thread():
    def fail(_):
        raise ArithmeticError("in the second stage")

    before = threading.active_count()
    model = pipeline(Probe(lambda _: None), Probe(fail))
    with pytest.raises(ArithmeticError, match="in the second stage"):
        model(torch.ones(2, 4))
    assert threading.active_count() == before


@pytest.mark.parametrize("enabled", [True, False], ids=["bf16", "fp32"])
def test_autocast_reaches_the_stages(enabled):
    seen = []
    model = pipeline(*[Probe(lambda y: seen.append(y.dtype)) for _ in range(2)])
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        model(torch.ones(2, 4))
    assert seen == [torch.bfloat16 if enabled else torch.float32] * 4


def test_gradient_mode_and_hooks_reach_the_stages():
    seen = []
    model = pipeline(*[Probe(lambda y: seen.append(y.requires_grad)) for _ in range(2)])
    with torch.no_grad(), SavedTensors() as saved:
        model(torch.ones(2, 4))
    assert seen == [False] * 4 and saved.peak == 0
    with SavedTensors(model.parameters()) as saved:
        kept = model(torch.ones(2, 4))
    assert saved.now >= 4 * 16 and kept.requires_grad  # four inputs of linears, 4 fp32 each


def test_sizes_are_bytes_saved_and_weights():
    """A batch of 8 has 2 chunks; a linear layer saves its input, a ReLU its output."""
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1, bias=False))
    sizes = torchgpipe_cpu.profile_sizes(model, torch.ones(8, 4), 2, 3.0, CPU)
    samples = 8 // 2
    assert sizes == [samples * 4 * 4 + 3 * (4 * 16 + 16) * 4, samples * 16 * 4,
                     samples * 16 * 4 + 3 * 16 * 4]


def test_balance_by_size_keeps_the_largest_stage_small():
    """The last layer keeps as much as it weighs: two stages of two layers would be 41 and 1 KB."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 400), nn.Linear(400, 4))
    assert balance_by_size(2, model, torch.ones(8, 4), device=CPU) == [3, 1]


def test_the_models_weights_are_as_before():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = [weight.clone() for weight in model.parameters()]
    balance_by_size(2, model, torch.ones(8, 4), device=CPU)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert all(weight.grad is None for weight in model.parameters())

"""Lab 12's small models, and what finds the weights of a gradient."""

import pytest
import torch
import torch.distributed as dist

from lablib import executor, versions
from pipeline_schedules import one_f_one_b, to_text
from warmranks import run_ranks

LINES = [line.split() for line in to_text(one_f_one_b(2, 4))]


def kept_losses(kind):
    """Run two stages that never update; return the losses, on the last rank."""
    rank = dist.get_rank()
    if kind == "layers":
        model, data = versions.Layer(3, rank, rank == 0, rank == 1), versions.micro_batches(4, 3, 0)
    else:
        model, data = versions.GPTStage(rank, 2), versions.token_batches(4)
    return versions.stream(model, executor.Stage, LINES, data, 1.0)


@pytest.mark.parametrize("kind", ["layers", "gpt"])
def test_a_stream_has_the_losses_of_one_process(kind):
    if kind == "layers":
        models, data = [versions.Layer(3, k, k == 0, k == 1) for k in range(2)], \
            versions.micro_batches(4, 3, 0)
    else:
        models, data = [versions.GPTStage(k, 2) for k in range(2)], versions.token_batches(4)
    expected = [models[1](models[0](None, one), one).item() for one in data]
    first, last = run_ranks(kept_losses, 2, kind)
    assert first == [] and last == pytest.approx(expected, rel=1e-5)


def test_the_nearest_versions_are_those_of_the_gradient():
    layers = [versions.Layer(3, k, k == 0, k == 1) for k in range(2)]
    records = [versions.Record(layer, versions.sgd(0.1)) for layer in layers]
    data = versions.micro_batches(3, 3, 1.0)
    for one in data:
        _, grads = versions.loss_and_gradients([record.history[-1] for record in records], one)
        for record, named in zip(records, grads, strict=True):
            for name, grad in named.items():
                record(name, record.history[-1][name], grad)
    mixed = [records[0].history[1], records[1].history[2]]
    _, grads = versions.loss_and_gradients(mixed, data[2])
    flat = torch.cat([value.flatten() for named in grads for value in named.values()])
    distance, numbers = versions.nearest(flat, [record.history for record in records], data[2])
    assert distance < 1e-12 and numbers == (1, 2)
    assert versions.nearest(flat + 0.1, [one.history for one in records], data[2])[0] > 0.01


def test_adam_is_pytorch_s():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    theirs, mine = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99)), versions.Adam(0.1)
    value = weight.detach().clone()
    for step in range(3):
        weight.grad = weight.detach() + step
        value = mine("weight", value, value + step)
        theirs.step()
    torch.testing.assert_close(value, weight.detach())


def test_a_stage_s_weights_are_counted_on_a_gpu():
    class Copies(executor.Stage):
        def backward(self, key, grad):
            self.copy = [one.detach().clone() for one in self.module.parameters()]
            back = super().backward(key, grad)
            self.module.zero_grad()
            return back

    assert versions.held(Copies, "F0 B0 F1 B1") == pytest.approx(2, abs=0.05)

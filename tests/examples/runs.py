"""Expected output of runs: the plain model's losses and gradient norms, and lines to compare."""

import re

import torch

import gpt_layers


def plain(run, samples, iterations, lr=1e-3, clip=1.0):
    """(loss, gradient norm) of each iteration of the whole model on one device."""
    model = gpt_layers.GPT(run.size, run.seed)
    for index, layer in enumerate(model.layers):
        run.load(layer, index)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    batches, seen = run.batches(samples), []
    for _ in range(iterations):
        tokens, labels = next(batches)
        counted = (labels != gpt_layers.NO_LABEL).sum()
        loss = gpt_layers.loss_sum(model(tokens), labels) / counted
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        seen.append((loss.item(), norm.item()))
    return seen


def printed(log):
    """(loss, gradient norm) of each iteration that a program printed."""
    matches = re.findall(r"^iteration .* \| loss (\S+) \| grad norm (\S+) \|", log, re.M)
    return [(float(loss), float(norm)) for loss, norm in matches]


def assert_same(seen, wanted):
    assert len(seen) == len(wanted) > 0
    for pair, wanted_pair in zip(seen, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(pair), torch.tensor(wanted_pair),
                                   rtol=2e-5, atol=2e-6)

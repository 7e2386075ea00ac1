"""A tiny language model and its training."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import minite as te

VOCABULARY, HIDDEN, SEQUENCE, BATCH = 128, 128, 16, 8  # 128x128 blocks fit


class Model(nn.Module):
    """An embedding, one Transformer layer, and a linear layer over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.layer = te.TransformerLayer(HIDDEN, HIDDEN, 4, hidden_dropout=0, attention_dropout=0)
        self.head = te.Linear(HIDDEN, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens)))


def batches(steps: int):
    """Yield tokens [s + 1, b]: the next is 5 t + 3 of the last, but one in ten is random."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (SEQUENCE + 1, BATCH), generator=generator)
        noise = torch.rand(tokens.shape, generator=generator) < 0.1
        for i in range(SEQUENCE):
            tokens[i + 1] = torch.where(noise[i + 1], tokens[i + 1],
                                        (5 * tokens[i] + 3) % VOCABULARY)
        yield tokens


def final_loss(recipe, steps: int = 60, before_step=lambda model, i: None
               ) -> float:
    """Train; return the mean loss of the last 20 steps.

    Args:
        recipe: None trains in bfloat16.
        before_step: called with the model and the step's index.
    """
    torch.manual_seed(0)
    model = Model().bfloat16()
    masters = [p.detach().float().requires_grad_() for p in model.parameters()]
    optimizer, losses = torch.optim.Adam(masters, lr=3e-3), []
    for i, tokens in enumerate(batches(steps)):
        before_step(model, i)
        with te.autocast(recipe is not None, recipe=recipe):
            logits = model(tokens[:-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[1:].flatten())
        loss.backward()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master.detach())
        losses.append(loss.item())
    return sum(losses[-20:]) / 20

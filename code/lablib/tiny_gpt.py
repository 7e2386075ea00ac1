"""A GPT with one layer, for lab 05: it trains in fp16 within a second, overflows included.

Parameters and batches are values of sines in fp64, so they are the same on every rank and machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LENGTH = 64, 32, 16
RATE = 0.003  # learning rate of AdamW at the start


class TinyGPT(nn.Module):
    """Embedding, causal attention with one head, MLP, and a tied output matrix, all in fp16."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        with torch.no_grad():
            for number, (name, parameter) in enumerate(self.named_parameters()):
                if name.endswith("bias"):
                    parameter.zero_()
                elif parameter.dim() > 1:
                    angles = 1.7 * torch.arange(parameter.numel(), dtype=torch.double) + number
                    parameter.copy_((0.1 * (angles**2 / 50).sin()).view_as(parameter))
        self.half()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss (fp32, one element) of predicting tokens [b, LENGTH + 1]."""
        x = self.words(tokens[:, :-1])
        query, key, value = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        scores = query @ key.mT / math.sqrt(WIDTH)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = x + self.out(scores.masked_fill(later, -math.inf).softmax(-1) @ value)
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        logits = F.linear(self.norms[2](x), self.words.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def micro_batches(seed: float, samples: int) -> list[torch.Tensor]:
    """Return two micro-batches of tokens, each [samples / 2, LENGTH + 1].

    Args:
        seed: the seed of the tokens.
        samples: the number of samples, even.
    """
    at = torch.arange(samples * (LENGTH + 1), dtype=torch.double).view(samples, LENGTH + 1) + seed
    tokens = ((0.7 * at).sin() + 1) / 2 * VOCABULARY
    return list(tokens.long().clamp(max=VOCABULARY - 1).chunk(2))


def learning_rate(advanced: int, batch: int) -> float:
    """Return the rate of a step, given the samples of earlier ones that were not skipped."""
    return RATE / (1 + 0.1 * advanced / batch)


@dataclass(frozen=True)
class Step:
    """What a step of training logs.

    Attributes:
        loss: mean over the global batch, without the scale.
        norm: gradient norm before clipping; 0 if the step was skipped.
        skipped: whether a gradient overflowed.
        scale: the loss scale of the step.
    """

    loss: float
    norm: float
    skipped: bool
    scale: float


def trained(seeds: list[float], samples: int, steps: int, clip: float, scale: float,
            window: int, hysteresis: int) -> list[Step]:
    """Train in fp16 with fp32 master weights and dynamic loss scaling, all ranks in one process.

    With one thread, as ranks have, and 1, 2, or 4 ranks, every bit is that of a data-parallel run:
    whether a gradient just overflows is no matter of rounding then.

    Args:
        seeds: those of the ranks' samples.
        samples: of a rank and step.
        steps: how many.
        clip: the largest gradient norm.
        scale, window, hysteresis: of the loss scaler; see the flags of pretrain_gpt.py.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _trained(seeds, samples, steps, clip, scale, window, hysteresis)
    finally:
        torch.set_num_threads(threads)


def _trained(seeds: list[float], samples: int, steps: int, clip: float, scale: float,
             window: int, hysteresis: int) -> list[Step]:
    model, made, batch = TinyGPT(), 0, samples * len(seeds)
    masters = [parameter.detach().float() for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad_dtype = torch.float32
    optimizer = torch.optim.AdamW(masters, lr=RATE)
    good, tolerated, done = 0, hysteresis, []
    for step in range(steps):
        loss, sums = 0.0, [torch.zeros_like(master) for master in masters]
        for seed in seeds:
            for tokens in (parts := micro_batches(seed + step * batch, samples)):
                part = model(tokens) / len(parts)
                (part * scale).backward()
                loss += part.item() / len(seeds)
            for total, parameter in zip(sums, model.parameters(), strict=True):
                total += parameter.grad  # of this rank
                parameter.grad = None
        for master, total in zip(masters, sums, strict=True):
            master.grad = total / len(seeds) / scale
        skipped = not all(master.grad.isfinite().all() for master in masters)
        norm = nn.utils.clip_grad_norm_(masters, clip)
        done.append(Step(loss, 0.0 if skipped else norm.item(), skipped, scale))
        if skipped:
            good, tolerated = 0, tolerated - 1
            scale = scale / 2 if tolerated <= 0 else scale
            continue
        optimizer.param_groups[0]["lr"] = learning_rate(made * batch, batch)
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=True):
            parameter.data.copy_(master)
        made, good = made + 1, good + 1
        if good == window:
            scale, good, tolerated = 2 * scale, 0, hysteresis
    return done

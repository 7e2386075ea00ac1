"""A GPT in plain torch, with no operation of ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def normal(norm, x):
    return norm(x.float()).to(x.dtype)


class Gpt(torch.nn.Module):
    """again: recompute every layer. Norms are in fp32: of 16-bit ones the CPU keeps less than CUDA
    and meta do."""

    def __init__(self, layers, h, heads, s, vocabulary, again, device):
        super().__init__()
        self.heads, self.again = heads, again
        on = {"device": device}
        self.words = torch.nn.Embedding(vocabulary, h, **on)
        self.places = torch.nn.Embedding(s, h, **on)
        self.layers = torch.nn.ModuleList(torch.nn.ModuleDict({
            "norm1": torch.nn.LayerNorm(h, **on), "qkv": torch.nn.Linear(h, 3 * h, **on),
            "out": torch.nn.Linear(h, h, **on), "norm2": torch.nn.LayerNorm(h, **on),
            "up": torch.nn.Linear(h, 4 * h, **on), "down": torch.nn.Linear(4 * h, h, **on),
        }) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(h, **on)

    def layer(self, x, part):
        b, s, h = x.shape
        q, k, v = (each.view(b, s, self.heads, -1).transpose(1, 2)
                   for each in part["qkv"](normal(part["norm1"], x)).chunk(3, -1))
        mask = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3)).mul(8**-0.5).masked_fill(mask, -1e4)
        mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        x = x + F.dropout(part["out"](mixed.transpose(1, 2).reshape(b, s, h)), 0.1)
        wide = F.gelu(part["up"](normal(part["norm2"], x)))
        return x + F.dropout(part["down"](wide), 0.1)

    def forward(self, tokens, labels):
        b, s = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(s, device=tokens.device))
        for part in self.layers:
            x = checkpoint(self.layer, x, part, use_reentrant=False, preserve_rng_state=False
                           ) if self.again else self.layer(x, part)
        logits = normal(self.norm, x) @ self.words.weight.t()
        return F.cross_entropy(logits.view(b * s, -1), labels.view(-1))

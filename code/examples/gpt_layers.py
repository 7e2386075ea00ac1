"""GPT-2 as a list of layers, so that a pipeline can be cut between any two of them.

Pre-norm transformer with learned positions and tied embeddings (Radford et al. 2019), in the layout
[batch, sequence, hidden] and without dropout. Twelve blocks make 14 layers: the embedding, the
blocks, and the head. The default split over four stages is [4, 3, 3, 4].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

STD = 0.02
NO_LABEL = -100  # a padded position: the loss does not count it


@dataclass(frozen=True)
class Size:
    """Size of the model; `vocabulary` counts token ids, and `positions` is the longest sequence."""

    layers: int
    hidden: int
    heads: int
    positions: int
    vocabulary: int


class Embedding(nn.Module):
    """Token ids [b, s] to hidden states [b, s, h]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.positions = nn.Embedding(size.positions, size.hidden)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=STD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.words(tokens) + self.positions(positions)


class Block(nn.Module):
    """Attention and MLP, each on a normalized copy and added to the stream x [b, s, h]."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        h = size.hidden
        self.heads = size.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        # Projections onto the stream start smaller, so that it does not grow with depth.
        to_stream = STD / math.sqrt(2 * size.layers)
        for linear, std in ((self.qkv, STD), (self.proj, to_stream),
                            (self.up, STD), (self.down, to_stream)):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (part.view(b, s, self.heads, h // self.heads).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, dim=-1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(b, s, h))


class Head(nn.Module):
    """Hidden states [b, s, h] to logits [b, s, V].

    `words` [V, h] is the embedding's matrix once more: GPT-2 ties the two. The caller brings it,
    because it lives on the first stage, and each library has its own way to the last.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size.hidden)

    def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return F.linear(self.norm(x), words)


class GPT(nn.Module):
    """The whole model on one device: what a pipeline must compute."""

    def __init__(self, size: Size, seed: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(build(kind, size, seed + index)
                                    for index, kind in enumerate(kinds(size)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedding, *blocks, head = self.layers
        x = embedding(tokens)
        for block in blocks:
            x = block(x)
        return head(x, embedding.words.weight)


def kinds(size: Size) -> list[type[nn.Module]]:
    """The classes of the layers, from first to last."""
    return [Embedding, *[Block] * size.layers, Head]


def build(kind: type[nn.Module], size: Size, seed: int) -> nn.Module:
    """One layer. Each has a seed of its own, so that its weights do not depend on the split."""
    torch.manual_seed(seed)
    return kind(size)


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, summed over the positions that have a label. labels: int64 [b, s]."""
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL,
                           reduction="sum")

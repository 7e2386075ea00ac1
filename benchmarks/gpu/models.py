"""The GPT that most programs train."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer layer.

    Args:
        width: hidden size, with heads of 64.
        dropout: dropout probability.
        attention: "sdpa" for scaled_dot_product_attention, "written" for separate operations.
    """

    def __init__(self, width: int, dropout: float, attention: str) -> None:
        super().__init__()
        self.heads, self.attention = width // 64, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, width = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        if self.attention == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1) * (1.0 / k.shape[-1] ** 0.5)
            mask = torch.ones(s, s, dtype=torch.bool, device=x.device).tril()
            y = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.dropout(self.out(y.transpose(1, 2).contiguous().view(b, s, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class Gpt(nn.Module):
    """A GPT with tied embeddings, like nanoGPT's.

    Args:
        layers: number of layers.
        width: hidden size.
        context: number of positions.
        vocabulary: number of tokens in the vocabulary.
        dropout: dropout probability.
        attention: "sdpa" or "written", as in Block.
        recompute: use activation checkpointing in every layer.
    """

    def __init__(self, layers: int = 4, width: int = 768, context: int = 1024,
                 vocabulary: int = 50304, dropout: float = 0.0, attention: str = "sdpa",
                 recompute: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, dropout, attention) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.words.weight = self.head.weight
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

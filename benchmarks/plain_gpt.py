"""A plain, well-written PyTorch GPT and its loop: what the trainer's speed is compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    layers: int
    hidden: int
    heads: int
    length: int
    vocabulary: int
    batch: int = 8  # sequences of a step

    @property
    def flags(self) -> str:
        """The same model on the trainer's command line, dropout 0, SDPA; without the data."""
        return (f"--num-layers {self.layers} --hidden-size {self.hidden} "
                f"--num-attention-heads {self.heads} --seq-length {self.length} --lr 1e-4 "
                f"--max-position-embeddings {self.length} --use-flash-attn --hidden-dropout 0 "
                "--attention-dropout 0 ")


SHAPES = {"10M": Shape(6, 352, 8, 256, 4096), "124M": Shape(12, 768, 12, 256, 50304)}


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        h, self.heads = shape.hidden, shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
        self.qkv, self.proj = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, self.heads, h // self.heads).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(h, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """Tied embeddings, learned positions: the trainer's model."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.length, shape.hidden)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.hidden)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


class PlainLoop:
    """bf16: autocast, with fp32 weights, as most plain loops have it."""

    def __init__(self, shape: Shape, texts: torch.Tensor, bf16: bool) -> None:
        self.model, self.texts, self.bf16 = PlainGPT(shape), texts, bf16
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def step(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.model(self.texts[:, :-1], self.texts[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()

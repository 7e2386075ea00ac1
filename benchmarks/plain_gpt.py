"""A plain, well-written PyTorch GPT and its training loop, the trainer's main competitor."""

from __future__ import annotations

import math
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
    batch: int = 8  # sequences per step

    @property
    def flags(self) -> str:
        """The same model as flags of the trainer: no dropout, SDPA. The data is not included."""
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
    """The trainer's model: tied embeddings, learned positions, GPT-2's initialization.

    The initialization matters for speed. PyTorch's default embedding, N(0, 1), which also
    produces the logits here, saturates the softmax: the loss starts near 232 instead of ln V = 8.3,
    and within a few steps the gradients fill with denormal numbers, on which some CPUs compute
    many times slower.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(shape.length, shape.hidden)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(shape.hidden)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                onto_residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(
                    parameter, std=0.02 / math.sqrt(2 * shape.layers) if onto_residual else 0.02)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.reshape(-1))


class PlainLoop:
    """One optimizer step per call. With bf16 it uses autocast, as most plain loops do."""

    def __init__(self, shape: Shape, texts: torch.Tensor, bf16: bool) -> None:
        self.model, self.texts, self.bf16 = PlainGPT(shape), texts, bf16
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    def step(self) -> float:
        """Take one step and return its loss."""
        self.adam.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            loss = self.model(self.texts[:, :-1], self.texts[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()
        return loss.item()

"""Train GPT-2 124M on one GPU, one optimization after another: a plain PyTorch program.

    python benchmarks/gpt2_steps.py --vocabulary 50304 --tf32 --bf16 --compile --flash --fused

It is the model of Karpathy's "Let's reproduce GPT-2 (124M)" (github.com/karpathy/build-nanogpt),
whose chapters add these options in this order. It knows nothing of virtual GPUs, and prints the
seconds of a step and the peak memory.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.heads, self.flash = size.heads, size.flash
        self.qkv = nn.Linear(size.hidden, 3 * size.hidden)
        self.out = nn.Linear(size.hidden, size.hidden)
        mask = torch.ones(size.sequence, size.sequence).tril()
        self.register_buffer("mask", mask[None, None])

    def forward(self, x: Tensor) -> Tensor:
        b, s, h = x.shape
        query, key, value = (one.view(b, s, self.heads, h // self.heads).transpose(1, 2)
                             for one in self.qkv(x).split(h, dim=2))
        if self.flash:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) * (1.0 / math.sqrt(key.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :s, :s] == 0, float("-inf"))
            mixed = F.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).contiguous().view(b, s, h))


class Block(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        h = size.hidden
        self.before_attention, self.before_mlp = nn.LayerNorm(h), nn.LayerNorm(h)
        self.attention = Attention(size)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Word embeddings and output layer are tied. It returns logits and loss, as the original."""

    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.hidden)
        self.places = nn.Embedding(size.sequence, size.hidden)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.words.weight = self.head.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def train(size: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of a step and the peak of the reserved memory in GiB."""
    if size.tf32:
        torch.set_float32_matmul_precision("high")
    model = Gpt2(size).to("cuda")
    if size.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), eps=1e-8,
                                  **({"fused": True} if size.fused else {}))
    tokens = torch.randint(size.vocabulary, (size.batch, size.sequence + 1))

    def step() -> None:
        x, y = tokens[:, :-1].to("cuda"), tokens[:, 1:].contiguous().to("cuda")
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=size.bf16):
            _, loss = model(x, y)
        loss.backward()
        if size.clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()

    step()
    begin = time.perf_counter()
    for _ in range(size.steps):
        step()
    return (time.perf_counter() - begin) / size.steps, torch.cuda.max_memory_reserved() / 2**30


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("hidden", 768), ("heads", 12), ("sequence", 1024),
                          ("vocabulary", 50257), ("batch", 16), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, text in (("tf32", "fp32 GEMMs may use TF32"), ("bf16", "autocast to bf16"),
                       ("compile", "torch.compile"), ("flash", "fused attention"),
                       ("clip", "clip gradients"), ("fused", "fused AdamW")):
        parser.add_argument(f"--{name}", action="store_true", help=text)
    return parser.parse_args(arguments)


def run(arguments: list[str] | None = None) -> tuple[float, float]:
    return train(parse(arguments))


if __name__ == "__main__":
    seconds, memory = run()
    print(f"{1000 * seconds:.1f} ms per step, {memory:.1f} GiB reserved at the peak")

"""The trainer against a plain PyTorch loop of the same model, step by step in one process.

python benchmarks/train_speed.py [--rounds 5] [--steps 5]

Prints tokens/s of both (medians over rounds that alternate) and their ratio. Dropout 0.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from minimegatron.arguments import parse_arguments
from minimegatron.batches import Batches
from minimegatron.initialize import initialize
from minimegatron.training import Trainer

LAYERS, HIDDEN, HEADS, LENGTH, VOCABULARY, BATCH = 6, 352, 8, 256, 4096, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, h = x.shape
        q, k, v = (t.view(b, s, HEADS, h // HEADS).transpose(1, 2)
                   for t in self.qkv(self.norm1(x)).split(h, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(b, s, h))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """The same GPT as a plain module: tied embeddings, learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.reshape(-1))


class PlainLoop:
    def __init__(self, texts: torch.Tensor) -> None:
        self.model, self.texts = PlainGPT(), texts
        self.adam = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def step(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        self.model(self.texts[:, :-1], self.texts[:, 1:]).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adam.step()


class OurLoop:
    def __init__(self, texts: torch.Tensor) -> None:
        flags = (f"--device cpu --num-layers {LAYERS} --hidden-size {HIDDEN} "
                 f"--num-attention-heads {HEADS} --seq-length {LENGTH} --lr 1e-4 "
                 f"--max-position-embeddings {LENGTH} --micro-batch-size {BATCH} --train-iters 1 "
                 "--data-path none --vocab-file none --merge-file none --use-flash-attn "
                 "--hidden-dropout 0 --attention-dropout 0")
        ctx = initialize(parse_arguments(shlex.split(flags)))
        self.trainer = Trainer(ctx, VOCABULARY, time.perf_counter())
        self.batches = Batches(ctx, [{"text": text.numpy()} for text in texts], 0, "training")

    def step(self) -> None:
        self.trainer.step(self.batches.step(0, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    texts = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    loops = {"trainer": OurLoop(texts), "plain loop": PlainLoop(texts)}
    parameters = sum(p.numel() for p in loops["plain loop"].model.parameters())
    assert parameters == loops["trainer"].trainer.optimizer.weights.numel(), "not the same model"
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for round_number in range(arguments.rounds + 1):
        for name, loop in loops.items():
            start = time.perf_counter()
            for _ in range(arguments.steps):
                loop.step()
            if round_number:  # the first round warms up
                seconds[name].append((time.perf_counter() - start) / arguments.steps)
    print(f"{parameters / 1e6:.1f}M parameters, {BATCH} x {LENGTH} tokens a step, fp32, "
          f"{torch.get_num_threads()} threads, medians of {arguments.rounds}")
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in medians.items():
        print(f"{name:12} {BATCH * LENGTH / value:8.0f} tokens/s  {1000 * value:7.1f} ms a step")
    ratios = [plain / ours for ours, plain in zip(*seconds.values(), strict=True)]
    print(f"trainer / plain loop: {statistics.median(ratios):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

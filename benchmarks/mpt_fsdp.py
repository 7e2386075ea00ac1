"""Train an MPT with FSDP1: a plain PyTorch program that knows nothing of virtual GPUs.

    torchrun --nproc-per-node 8 benchmarks/mpt_fsdp.py --hidden 4096 --layers 32 ...

It makes the choices of llm-foundry's benchmarks of 2023 (scripts/train/benchmarking and Composer's
trainer): a GPT with biases, learned positions, and tied embeddings; a fused projection for queries,
keys, and values; low-precision LayerNorm; bf16 autocast with FSDP's parameters and reductions in
bf16; one FSDP unit per layer, with limit_all_gathers and backward_prefetch "BACKWARD_POST"; a
reduce-scatter after every micro-batch; gradient clipping; and AdamW, one tensor at a time.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel,
    MixedPrecision,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

VOCABULARY = 50368  # the published parameter counts follow from it, from the biases and positions


class LayerNorm(nn.LayerNorm):
    """LayerNorm in bf16, where autocast would compute it in fp32."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cuda", enabled=False):
            low = torch.bfloat16
            return F.layer_norm(x.to(low), self.normalized_shape, self.weight.to(low),
                                self.bias.to(low), self.eps)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                             for part in self.project(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = LayerNorm(hidden), LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Mpt(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, size.hidden)
        self.positions = nn.Embedding(size.sequence, size.hidden)
        self.layers = nn.ModuleList(Block(size.hidden, size.heads) for _ in range(size.layers))
        self.norm = LayerNorm(size.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        x = self.words(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.words.weight)


class FusedCrossEntropy(torch.autograd.Function):
    """Cross-entropy in bf16 that keeps one buffer as large as the logits.

    llm-foundry's default is FlashAttention's kernel, which neither converts the logits to fp32 nor
    writes their log-probabilities.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor) -> Tensor:
        log_probabilities = F.log_softmax(logits, -1)
        ctx.save_for_backward(log_probabilities, targets)
        return F.nll_loss(log_probabilities, targets)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        log_probabilities, targets = ctx.saved_tensors
        found = log_probabilities.exp_()
        found.scatter_add_(1, targets.unsqueeze(1), -found.new_ones(len(targets), 1))
        return found.mul_(gradient / len(targets)), None


def build(size: argparse.Namespace) -> nn.Module:
    """Build the model on the meta device, give it memory and values, and shard it."""
    with torch.device("meta"):
        model = Mpt(size)
    low = torch.bfloat16
    model = FullyShardedDataParallel(
        model, sharding_strategy=ShardingStrategy[size.sharding],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        mixed_precision=MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low),
        backward_prefetch=BackwardPrefetch.BACKWARD_POST, limit_all_gathers=True,
        param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
        device_id=torch.cuda.current_device())
    if size.checkpointing:
        apply_activation_checkpointing(
            model, partial(checkpoint_wrapper, preserve_rng_state=False),
            lambda module: isinstance(module, Block))
    return model


def train(size: argparse.Namespace) -> tuple[float, int]:
    """Return the seconds of the last step and the peak of the reserved memory in bytes."""
    model = build(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0,
                                  foreach=False)

    def step(micro_batches: int) -> None:
        for _ in range(micro_batches):
            tokens = torch.randint(VOCABULARY, (size.batch, size.sequence + 1)).cuda()
            with torch.autocast("cuda", torch.bfloat16):
                logits = model(tokens[:, :-1])
            loss = FusedCrossEntropy.apply(logits.flatten(0, 1), tokens[:, 1:].flatten())
            del logits
            (loss / micro_batches).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()

    seconds = 0.0
    for micro_batches in size.micro_batches:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(micro_batches)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    return seconds, torch.cuda.max_memory_reserved()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("hidden", "layers", "heads", "sequence"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences of a micro-batch")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 1],
                        help="of each step; the first step is the warm-up")
    parser.add_argument("--sharding", choices=("FULL_SHARD", "SHARD_GRAD_OP"), default="FULL_SHARD")
    parser.add_argument("--checkpointing", action="store_true")
    return parser.parse_args(arguments)


def run(arguments: list[str] | None = None) -> tuple[float, int]:
    """Train on all ranks; return what `train` does."""
    size = parse(arguments)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    found = train(size)
    dist.destroy_process_group()
    return found


def main() -> None:
    seconds, memory = run()
    if os.environ["RANK"] == "0":
        print(f"{seconds:.3f} s per step, {memory / 2**30:.1f} GiB reserved at the peak")


if __name__ == "__main__":
    main()

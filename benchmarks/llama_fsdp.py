"""Train a Llama with FSDP2: a plain PyTorch program that knows nothing of virtual GPUs.

    torchrun --nproc-per-node 8 benchmarks/llama_fsdp.py --hidden 4096 --layers 32 ...

It makes the choices that torchtitan's configurations of 2024 made: bf16 compute with fp32
parameters and reductions, RMSNorm and rotary embeddings without fused kernels, SDPA, an fp32 loss,
AdamW, and gradient clipping. With --compile, every layer is compiled; with --compile-loss, the loss
is, too, as in torchtitan since 2025; with --float8, torchao's linear layers multiply in FP8 with a
scale per tensor, all but the last; with --context, so many GPUs share each sequence. Rank 0 prints
tokens/s per GPU and the peak memory.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

aten = torch.ops.aten
MATMUL = aten.mm.default
ATTENTION = (aten._scaled_dot_product_flash_attention.default,
             aten._scaled_dot_product_efficient_attention.default)
LARGEST = aten.max.default  # of FP8's scales
CHECKPOINTING = ("none", "layer", "op", "full")
EVERY = 2  # of the layers, "layer" checkpoints one in so many


class RMSNorm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return wide.type_as(x) * self.weight


def rotations(sequence: int, width: int) -> Tensor:
    """Return the rotary embedding's rotations as complex numbers, `[s, d / 2]`."""
    frequencies = 5e5 ** -(torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(sequence, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, by: Tensor) -> Tensor:
    """Rotate pairs of a head's channels, `[b, s, heads, d]`."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * by[None, :, None]).flatten(3).type_as(x)


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int) -> None:
        super().__init__()
        self.width, self.copies = hidden // heads, heads // groups
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, groups * self.width, bias=False)
        self.value = nn.Linear(hidden, groups * self.width, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        query, key, value = (
            linear(x).unflatten(-1, (-1, self.width))
            for linear in (self.query, self.key, self.value))
        query, key = rotate(query, by), rotate(key, by)
        if self.copies > 1:
            key, value = (one.repeat_interleave(self.copies, 2) for one in (key, value))
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int, groups: int, inner: int) -> None:
        super().__init__()
        self.before_attention, self.before_feed_forward = RMSNorm(hidden), RMSNorm(hidden)
        self.attention = Attention(hidden, heads, groups)
        self.feed_forward = FeedForward(hidden, inner)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), by)
        return x + self.feed_forward(self.before_feed_forward(x))


class Llama(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(
            Block(size.hidden, size.heads, size.groups, size.inner) for _ in range(size.layers))
        self.norm = RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)
        self.logits = torch.bfloat16 if size.compile_loss else getattr(torch, size.logits)
        self.register_buffer("by", rotations(size.sequence, size.hidden // size.heads))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.by)
        return self.head(self.norm(x)).to(self.logits)


def cross_entropy(logits: Tensor, labels: Tensor, dtype: torch.dtype) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).to(dtype), labels.flatten())


def every_second_matmul() -> tuple[AbstractContextManager, AbstractContextManager]:
    """Return contexts that save attention, every second matmul, and scales, and recompute the rest.
    """
    counts: Counter[bool] = Counter()

    def policy(context, operation, *_args, **_kwargs) -> CheckpointPolicy:
        if operation is MATMUL:
            counts[context.is_recompute] += 1
        saved = (operation in ATTENTION or operation is LARGEST
                 or (operation is MATMUL and counts[context.is_recompute] % 2 == 1))
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def wrap(block: nn.Module, index: int, checkpointing: str) -> nn.Module:
    """Add activation checkpointing to a layer where its mode asks for it."""
    if checkpointing == "none" or (checkpointing == "layer" and (index + 1) % EVERY):
        return block
    if checkpointing == "op":
        return checkpoint_wrapper(block, context_fn=every_second_matmul, preserve_rng_state=False)
    return checkpoint_wrapper(block, preserve_rng_state=False)


def mesh(sharding: str) -> DeviceMesh:
    """Return all ranks as one dimension, or replicas of nodes whose GPUs share a model."""
    world, node = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    if sharding == "full":
        return init_device_mesh("cuda", (world,))
    return init_device_mesh("cuda", (world // node, node), mesh_dim_names=("replicate", "shard"))


def build(size: argparse.Namespace) -> nn.Module:
    """Build the model on the meta device, shard it, and give it memory and values."""
    with torch.device("meta"):
        model = Llama(size).to(getattr(torch, size.parameters))
    if size.float8:
        multiply_in_float8(model.layers)
    shard = partial(
        fully_shard, mesh=mesh(size.sharding),
        mp_policy=MixedPrecisionPolicy(torch.bfloat16, getattr(torch, size.reductions)))
    last = size.layers - 1
    for index, block in enumerate(model.layers):
        model.layers[index] = wrap(block, index, size.checkpointing)
        if size.compile:
            model.layers[index].compile()
        shard(model.layers[index], reshard_after_forward=index < last)
    shard(model)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    model.by = rotations(size.sequence, size.hidden // size.heads).cuda()
    return model


def multiply_in_float8(layers: nn.Module) -> None:
    """Convert linear layers as torchtitan's tables do, which also gather parameters in FP8."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(layers, config=config)


def sharing_sequences(size: argparse.Namespace, model: nn.Module, *tokens: Tensor
                      ) -> AbstractContextManager:
    """Return a context in which each of `size.context` GPUs has its part of every sequence."""
    if size.context == 1:
        return nullcontext()
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    set_rotate_method("allgather")
    ranks = init_device_mesh("cuda", (dist.get_world_size() // size.context, size.context),
                             mesh_dim_names=("data", "context"))
    return context_parallel(ranks["context"], buffers=[*tokens, model.by],
                            buffer_seq_dims=[1, 1, 0], no_restore_buffers={*tokens})


def train(size: argparse.Namespace) -> tuple[float, float]:
    """Return tokens/s per GPU and the peak of the reserved memory in GiB."""
    model = build(size)
    measure = torch.compile(cross_entropy) if size.compile_loss else cross_entropy
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def step() -> None:
        optimizer.zero_grad()
        for micro_batch in range(size.accumulation):
            tokens = torch.randint(size.vocabulary, (size.batch, size.sequence + 1)).cuda()
            model.set_requires_gradient_sync(micro_batch == size.accumulation - 1)
            inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            with sharing_sequences(size, model, inputs, labels):
                logits = model(inputs)
                loss = measure(logits, labels, getattr(torch, size.logits))
                del logits
                (loss / size.accumulation).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()

    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(size.steps):
        step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / size.steps
    tokens = size.accumulation * size.batch * size.sequence // size.context
    return tokens / seconds, torch.cuda.max_memory_reserved() / 2**30


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("hidden", "layers", "heads", "groups", "inner", "vocabulary", "sequence", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--parameters", choices=("float32", "bfloat16"), default="float32",
                        help="dtype of the parameters and of the optimizer's state")
    parser.add_argument("--reductions", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--logits", choices=("float32", "bfloat16"), default="float32",
                        help="dtype in which the loss is computed")
    parser.add_argument("--sharding", choices=("full", "hybrid"), default="full",
                        help="over all GPUs, or over those of a node")
    parser.add_argument("--checkpointing", choices=CHECKPOINTING, default="none")
    parser.add_argument("--compile", action="store_true", help="torch.compile for every layer")
    parser.add_argument("--compile-loss", action="store_true",
                        help="torch.compile for the loss and the conversion of its logits")
    parser.add_argument("--float8", action="store_true", help="torchao's FP8 linear layers")
    parser.add_argument("--context", type=int, default=1, help="GPUs that share a sequence")
    parser.add_argument("--steps", type=int, default=1, help="timed steps, after one of warm-up")
    return parser.parse_args(arguments)


def run(arguments: list[str] | None = None) -> tuple[float, float]:
    """Train on all ranks; return what `train` does."""
    size = parse(arguments)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    found = train(size)
    dist.destroy_process_group()
    return found


def main() -> None:
    speed, memory = run()
    if os.environ["RANK"] == "0":
        print(f"{speed:.0f} tokens/s per GPU, {memory:.1f} GiB reserved at the peak")


if __name__ == "__main__":
    main()

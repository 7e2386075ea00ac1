"""Programs that run on a real GPU and on a virtual one.

Each function builds a model and returns its step, which marks the points at which memory is
compared on the `Probe` that it is called with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.gpu.models import Gpt
from benchmarks.gpu.probe import Probe

Step = Callable[[Probe], None]
DEVICE = "cuda"


def gpt(dtype: torch.dtype | None = torch.bfloat16, tf32: bool = False, batch: int = 8,
        context: int = 1024, vocabulary: int = 50304, optimizer: dict | None = None,
        model: Callable[[nn.Module], nn.Module] = lambda one: one, clip: bool = True,
        **shape: object) -> Step:
    """Return a training step of a GPT.

    Args:
        dtype: dtype of autocast, or None for fp32.
        tf32: allow TF32 in fp32 matrix multiplications.
        batch: number of sequences.
        context: tokens per sequence.
        vocabulary: number of tokens in the vocabulary.
        optimizer: options of AdamW.
        model: wraps the model, for example in DistributedDataParallel.
        clip: clip the gradient norm.
        shape: other arguments of Gpt.
    """
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    built = model(Gpt(context=context, vocabulary=vocabulary, **shape).to(DEVICE))
    adam = torch.optim.AdamW(built.parameters(), lr=1e-4, **(optimizer or {}))
    scaler = torch.amp.GradScaler("cuda") if dtype == torch.float16 else None
    data = torch.randint(vocabulary, (2, batch, context)).pin_memory()

    def step(probe: Probe) -> None:
        tokens, targets = data.to(DEVICE, non_blocking=True)
        with torch.autocast("cuda", dtype) if dtype else nullcontext():
            loss = built(tokens, targets)
        probe.mark("after the forward pass")
        (scaler.scale(loss) if scaler else loss).backward()
        probe.mark("after the backward pass")
        if scaler:
            scaler.unscale_(adam)
        if clip:
            nn.utils.clip_grad_norm_(built.parameters(), 1.0)
        if scaler:
            scaler.step(adam)
            scaler.update()
        else:
            adam.step()
        probe.mark("after the optimizer step")
        adam.zero_grad(set_to_none=True)
        probe.mark("after zero_grad")
    return step


def train(model: nn.Module, loss_of: Callable[[], torch.Tensor],
          optimizer: torch.optim.Optimizer) -> Step:
    """Return a plain training step.

    Args:
        model: the model, on the GPU.
        loss_of: returns the loss of a batch.
        optimizer: updates the model's parameters.
    """
    def step(probe: Probe) -> None:
        loss = loss_of()
        probe.mark("after the forward pass")
        loss.backward()
        probe.mark("after the backward pass")
        optimizer.step()
        probe.mark("after the optimizer step")
        optimizer.zero_grad()
        probe.mark("after zero_grad")
    return step


def hugging_face(kind: str) -> Step:
    """Return a training step of "llama" or "gpt2" from transformers, in bf16."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(
            hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16,
            num_key_value_heads=4, vocab_size=32000))
    else:
        model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=768, n_head=12))
    model = model.to(DEVICE, torch.bfloat16)
    model.train()
    tokens = torch.randint(0, 32000, (4, 1024), device=DEVICE)
    return train(model, lambda: model(input_ids=tokens, labels=tokens).loss,
                 torch.optim.AdamW(model.parameters(), lr=1e-4))


def mlp(optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> Step:
    """Return a training step of six linear layers, with an optimizer to choose."""
    torch.manual_seed(1)
    model = nn.Sequential(*(layer for _ in range(6) for layer in (
        nn.Linear(1024, 1024), nn.GELU(approximate="tanh")))).to(DEVICE)
    x = torch.randn(4096, 1024, device=DEVICE)
    return train(model, lambda: model(x).square().mean(), optimizer(model.parameters()))


def convolutions(channels_last: bool = False) -> Step:
    """Return a training step of three convolutions with batch norm, under fp16 autocast."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
                   nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    form = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(DEVICE, memory_format=form)
    x = torch.randn(64, 3, 64, 64, device=DEVICE).to(memory_format=form)
    y = torch.randint(1000, (64,), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return F.cross_entropy(model(x), y)
    return train(model, loss, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))


def encoder() -> Step:
    """Return a training step of PyTorch's TransformerEncoder on image patches, as in a ViT."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Linear(768, 768), nn.TransformerEncoder(
        layer, 4, enable_nested_tensor=False), nn.Linear(768, 1000)).to(DEVICE)
    x = torch.randn(32, 197, 768, device=DEVICE)
    y = torch.randint(1000, (32,), device=DEVICE)

    def loss() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.cross_entropy(model(x).mean(1), y)
    return train(model, loss, torch.optim.AdamW(model.parameters(), fused=True))


def attention(dtype: torch.dtype, mask: str = "", dropout: float = 0.0, groups: int = 16) -> Step:
    """Return the forward and backward pass of scaled_dot_product_attention with 16 heads.

    Args:
        dtype: dtype of the operands.
        mask: "", "causal", "bool", or "bias".
        dropout: dropout probability.
        groups: number of heads of the keys and values.
    """
    torch.manual_seed(1)
    make = {"device": DEVICE, "dtype": dtype}
    q = torch.randn(2, 16, 1024, 64, requires_grad=True, **make)
    k, v = (torch.randn(2, groups, 1024, 64, requires_grad=True, **make) for _ in range(2))
    mask_of = {"bool": lambda: torch.ones(1024, 1024, dtype=torch.bool, device=DEVICE).tril(),
               "bias": lambda: torch.randn(1, 16, 1024, 1024, **make)}
    extra = mask_of[mask]() if mask in mask_of else None

    def step(probe: Probe) -> None:
        out = F.scaled_dot_product_attention(
            q, k, v, extra, dropout, is_causal=mask == "causal", enable_gqa=groups != 16)
        probe.mark("after the forward pass")
        out.sum().backward()
        probe.mark("after the backward pass")
        q.grad = k.grad = v.grad = None
        probe.mark("after zero_grad")
    return step


def distributed(kind: str) -> Step:
    """Return a training step of a GPT with one rank, under "ddp" or "fsdp2"."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    os.environ.setdefault("RANK", "0")
    os.environ.setdefault("WORLD_SIZE", "1")
    dist.init_process_group("nccl")
    if kind == "ddp":
        return gpt(model=lambda one: DistributedDataParallel(one, device_ids=[0]))

    def shard(model: nn.Module) -> nn.Module:
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    return gpt(model=shard, optimizer={"fused": True})


def inference() -> Step:
    """Return a forward pass of a GPT under inference_mode."""
    torch.manual_seed(1)
    model = Gpt().to(DEVICE, torch.bfloat16).eval()
    tokens = torch.randint(50304, (8, 1024), device=DEVICE)

    def step(probe: Probe) -> None:
        with torch.inference_mode():
            loss = model(tokens, tokens)
        probe.mark("after the forward pass")
        del loss
        probe.mark("at the end")
    return step


def scaled() -> Step:
    """Return an fp8 matrix multiplication with scaled operands."""
    a, b = (torch.randn(4096, 4096, device=DEVICE).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=DEVICE)

    def step(probe: Probe) -> None:
        y = torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
        probe.mark("after the product")
        del y
        probe.mark("at the end")
    return step


def out_of_memory() -> Step:
    """Return an allocation that halves its size after each out-of-memory error until it fits."""
    def step(probe: Probe) -> None:
        size = 2**40
        while True:
            try:
                x = torch.empty(size, dtype=torch.uint8, device=DEVICE)
                break
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
                size //= 2
        probe.mark(f"after {size >> 30} GiB fit")
        del x
        torch.cuda.empty_cache()
        probe.mark("at the end")
    return step


AdamW = torch.optim.AdamW
PROGRAMS: dict[str, Callable[[], Step]] = {
    "GPT, fp32": lambda: gpt(None),
    "GPT, TF32": lambda: gpt(None, tf32=True),
    "GPT, bf16 autocast": gpt,
    "GPT, bf16, dropout 0.1": lambda: gpt(dropout=0.1),
    "GPT, bf16, vocabulary 50257": lambda: gpt(vocabulary=50257, clip=False),
    "GPT, fp16 and GradScaler": lambda: gpt(torch.float16, optimizer={"fused": True}),
    "GPT, bf16, activation checkpointing": lambda: gpt(recompute=True),
    "GPT, bf16, hand-written attention": lambda: gpt(attention="written"),
    "GPT, 1.3 billion parameters": lambda: gpt(
        layers=24, width=2048, context=2048, batch=4, optimizer={"fused": True}),
    "Hugging Face GPT-2": lambda: hugging_face("gpt2"),
    "Hugging Face Llama": lambda: hugging_face("llama"),
    "MLP, AdamW(foreach=False)": lambda: mlp(lambda p: AdamW(p, foreach=False)),
    "MLP, AdamW(foreach=True)": lambda: mlp(lambda p: AdamW(p, foreach=True)),
    "MLP, AdamW(fused=True)": lambda: mlp(lambda p: AdamW(p, fused=True)),
    "MLP, SGD with momentum": lambda: mlp(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    "convolutions, fp16": convolutions,
    "convolutions, fp16, channels last": lambda: convolutions(True),
    "TransformerEncoder": encoder,
    "attention, bf16, causal": lambda: attention(torch.bfloat16, "causal"),
    "attention, bf16, bool mask": lambda: attention(torch.bfloat16, "bool"),
    "attention, bf16, bias": lambda: attention(torch.bfloat16, "bias"),
    "attention, bf16, dropout": lambda: attention(torch.bfloat16, dropout=0.1),
    "attention, bf16, grouped": lambda: attention(torch.bfloat16, "causal", groups=4),
    "attention, fp32": lambda: attention(torch.float32, "causal"),
    "attention, fp32, bool mask": lambda: attention(torch.float32, "bool"),
    "DDP, one rank": lambda: distributed("ddp"),
    "FSDP2, one rank": lambda: distributed("fsdp2"),
    "inference_mode": inference,
    "_scaled_mm": scaled,
    "out of memory": out_of_memory,
}

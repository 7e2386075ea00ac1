"""A nanoGPT-like training loop on one GPU."""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
parser.add_argument("--recompute", default="none", choices=["none", "full", "selective"])
parser.add_argument("--compile", action="store_true")
parser.add_argument("--fused", action="store_true")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--width", type=int, default=768)
parser.add_argument("--context", type=int, default=1024)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--vocabulary", type=int, default=50304)
parser.add_argument("--steps", type=int, default=3)
parser.add_argument("--dropout", type=float, default=0.1)
args = parser.parse_args()
DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x):
        b, s, width = x.shape
        q, k, v = (part.view(b, s, self.heads, -1).transpose(1, 2)
                   for part in self.qkv(self.norm_1(x)).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).contiguous().view(b, s, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


def saved(context, op, *_, **__):
    matmuls = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in matmuls else CheckpointPolicy.PREFER_RECOMPUTE


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(args.vocabulary, args.width)
        self.places = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(Block(args.width, args.width // 64)
                                    for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, args.vocabulary, bias=False)
        self.words.weight = self.head.weight  # tied

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            if args.recompute == "none":
                x = block(x)
            elif args.recompute == "full":
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = checkpoint(block, x, use_reentrant=False,
                               context_fn=lambda: create_selective_checkpoint_contexts(saved))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(1337)
torch.backends.cuda.matmul.allow_tf32 = True
data = torch.randint(args.vocabulary, (100_000,))


def batch():
    at = torch.randint(len(data) - args.context - 1, (args.batch,))
    x = torch.stack([data[i:i + args.context] for i in at])
    y = torch.stack([data[i + 1:i + 1 + args.context] for i in at])
    return (x.pin_memory().to(DEVICE, non_blocking=True),
            y.pin_memory().to(DEVICE, non_blocking=True))


model = Gpt()
model.to(DEVICE)
assert model.words.weight is model.head.weight
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=args.fused)
if args.compile:
    model = torch.compile(model)
scaler = torch.amp.GradScaler("cuda", enabled=args.dtype == "float16")
autocast = torch.autocast("cuda", getattr(torch, args.dtype), enabled=args.dtype != "float32")
for step in range(args.steps):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    x, y = batch()
    with autocast:
        loss = model(x, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    print(f"iter {step}: loss {loss.item():.4f}, norm {norm.item():.4f}, {1e3 * took:.3f} ms")
print(f"peak {torch.cuda.max_memory_allocated() / 2**20:.1f} MiB, scale {scaler.get_scale()}")

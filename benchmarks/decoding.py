"""Programs that decode tokens with models of published sizes, for inference.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

# hidden, inner, layers, heads, groups, vocabulary; Qwen's query, key, and value have biases.
SHAPES = {
    "Llama 2 7B": (4096, 11008, 32, 32, 32, 32000), "Llama 2 13B": (5120, 13824, 40, 40, 40, 32000),
    "Llama 3.1 8B": (4096, 14336, 32, 32, 8, 128256),
    "Qwen 2.5 3B": (2048, 11008, 36, 16, 2, 151936),
    "Qwen 2.5 7B": (3584, 18944, 28, 28, 4, 152064),
    "Qwen 2.5 32B": (5120, 27648, 64, 40, 8, 152064)}
NEW = 5  # tokens; all later ones take as long
CUDA = "cuda:0"


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(torch.mean(y * y, -1, keepdim=True) + 1e-5)
        return y.type_as(x) * self.weight


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Apply rotary embeddings in fp32 to pairs of neighbors, [b, s, heads, width]."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    cos, sin = (angles.view(1, x.shape[1], 1, -1, 2)[..., part] for part in range(2))
    real, imaginary = pairs[..., 0], pairs[..., 1]
    turned = torch.stack((real * cos - imaginary * sin, imaginary * cos + real * sin), -1)
    return turned.flatten(3).type_as(x)


class Layer(nn.Module):
    """A layer of Llama whose KV cache is preallocated, with the operations of gpt-fast's."""

    def __init__(self, hidden: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, False), nn.Linear(hidden, hidden, False)
        self.gate, self.up = nn.Linear(hidden, inner, False), nn.Linear(hidden, inner, False)
        self.down = nn.Linear(inner, hidden, False)
        self.before, self.between = RmsNorm(hidden), RmsNorm(hidden)

    def attention(self, x: torch.Tensor, positions: torch.Tensor, angles: torch.Tensor,
                  mask: torch.Tensor) -> torch.Tensor:
        b, s, hidden = x.shape
        q, k, v = (part.view(b, s, self.heads, -1) for part in self.qkv(x).split(hidden, -1))
        q, k, v = (one.transpose(1, 2) for one in (rotate(q, angles), rotate(k, angles), v))
        for cache, new in zip(self.cache, (k, v), strict=True):
            cache[:, :, positions] = new
        k, v = (cache.repeat_interleave(1, dim=1) for cache in self.cache)  # one group per head
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).contiguous().view(b, s, hidden))

    def forward(self, x: torch.Tensor, *where: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), *where)
        y = self.between(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, hidden: int, inner: int, layers: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Layer(hidden, inner, heads) for _ in range(layers))
        self.norm, self.head = RmsNorm(hidden), nn.Linear(hidden, vocabulary, False)

    def allocate(self, length: int, width: int) -> None:
        for layer in self.layers:
            layer.cache = [torch.zeros(1, layer.heads, length, width, dtype=torch.bfloat16,
                                       device=CUDA) for _ in range(2)]
        self.angles = torch.zeros(length, width, dtype=torch.bfloat16, device=CUDA)
        self.mask = torch.ones(length, length, dtype=torch.bool, device=CUDA).tril()

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        mask, angles = self.mask[None, None, positions], self.angles[positions]
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, angles, mask)
        return self.head(self.norm(x))


def sampled(model: nn.Module, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return a token among the 200 most likely ones, drawn without a synchronization."""
    logits = model(ids, positions)[0, -1] / 0.8
    least = torch.topk(logits, 200)[0].select(-1, -1).unsqueeze(-1)
    chances = F.softmax(torch.where(logits < least, -float("inf"), logits), -1)
    drawn = chances / torch.empty_like(chances).exponential_(1)
    return torch.argmax(drawn, -1, keepdim=True).to(torch.int)


@torch.no_grad()
def static_cache(row: dict) -> None:
    """Decode as gpt-fast does: batch size 1, a preallocated cache, compiled on request."""
    hidden, inner, layers, heads, _, vocabulary = SHAPES[row["model"]]
    with torch.device("meta"):
        model = Llama(hidden, inner, layers, heads, vocabulary)
    model = model.to(torch.bfloat16).to_empty(device=CUDA).eval()
    model.allocate(256, hidden // heads)
    decode = sampled
    if row["mode"] != "eager":
        decode = torch.compile(sampled, mode="reduce-overhead", fullgraph=True)
    ids = torch.zeros(1, row["prompt"], dtype=torch.int, device=CUDA)
    token = sampled(model, ids, torch.arange(row["prompt"], device=CUDA))
    position = torch.tensor([row["prompt"]], dtype=torch.int, device=CUDA)
    for _ in range(NEW - 1):
        token = decode(model, token.view(1, -1), position).clone()
        position += 1


def transformers(row: dict) -> None:
    """Call Hugging Face's generate, with its dynamic cache."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    hidden, inner, layers, heads, groups, vocabulary = SHAPES[row["model"]]
    config = (Qwen2Config if row["model"].startswith("Qwen") else LlamaConfig)(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=groups, vocab_size=vocabulary)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.float16 if row["gpu"] == "t4" else torch.bfloat16)
    model = model.to_empty(device=CUDA).eval()
    ids = torch.zeros(row["batch"], row["prompt"], dtype=torch.int64, device=CUDA)
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False,
                   eos_token_id=None, pad_token_id=0)


PROGRAMS: dict[str, Callable[[dict], None]] = {
    "static_cache": static_cache, "transformers": transformers}

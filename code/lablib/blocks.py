"""Build a transformer on the meta device, and count its parameters and the FLOPs it executes.

In lab 07, students compute the same counts from the configuration alone. A model is a dictionary:

    layers, hidden, heads, sequence, vocabulary: as in GPT-2
    groups: key and value heads; `heads` without grouped-query attention
    ffn: width of the MLP, or of each expert
    gated: whether the MLP has a third matrix (SwiGLU)
    experts, chosen: experts per layer, and how many of them process each token; 1 and 1 if dense
    learned: whether positions are a learned embedding
    tied: whether the output matrix is the word embedding
    biases: whether linear layers and norms have biases; routers and the output matrix have none
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode


class Attention(nn.Module):
    """Self-attention with grouped queries, without a fused kernel."""

    def __init__(self, model: Mapping) -> None:
        super().__init__()
        hidden, self.heads, self.groups = model["hidden"], model["heads"], model["groups"]
        self.width = hidden // self.heads
        self.query = nn.Linear(hidden, hidden, bias=model["biases"])
        self.key = nn.Linear(hidden, self.groups * self.width, bias=model["biases"])
        self.value = nn.Linear(hidden, self.groups * self.width, bias=model["biases"])
        self.output = nn.Linear(hidden, hidden, bias=model["biases"])

    def forward(self, x: Tensor) -> Tensor:
        """x: hidden states, [b, s, h]."""
        def split(y: Tensor, heads: int) -> Tensor:
            y = y.unflatten(-1, (heads, self.width)).transpose(1, 2)
            return y.repeat_interleave(self.heads // heads, dim=1)

        query = split(self.query(x), self.heads)
        key, value = split(self.key(x), self.groups), split(self.value(x), self.groups)
        scores = (query @ key.transpose(-1, -2)).softmax(-1)
        return self.output((scores @ value).transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """A router and the MLPs of all experts, each of which gets the same number of tokens."""

    def __init__(self, model: Mapping) -> None:
        super().__init__()
        self.experts, self.chosen = model["experts"], model["chosen"]
        self.router = nn.Linear(model["hidden"], self.experts, bias=False)
        self.mlps = nn.ModuleList(Mlp(model) for _ in range(self.experts))

    def forward(self, x: Tensor) -> Tensor:
        """x: hidden states, [b, s, h]."""
        tokens = x.flatten(0, 1)
        weights = self.router(tokens).softmax(-1).topk(self.chosen).values
        # The meta device has no values to route by, so each expert gets an equal, contiguous share.
        shares = tokens.repeat_interleave(self.chosen, dim=0).chunk(self.experts)
        made = torch.cat([mlp(share) for mlp, share in zip(self.mlps, shares, strict=True)])
        made = made.unflatten(0, (-1, self.chosen)) * weights.unsqueeze(-1)
        return made.sum(1).view_as(x)


class Mlp(nn.Module):
    """Two matrices and GELU, or three and SwiGLU."""

    def __init__(self, model: Mapping) -> None:
        super().__init__()
        hidden, ffn, biases = model["hidden"], model["ffn"], model["biases"]
        self.up = nn.Linear(hidden, ffn, bias=biases)
        self.gate = nn.Linear(hidden, ffn, bias=biases) if model["gated"] else None
        self.down = nn.Linear(ffn, hidden, bias=biases)

    def forward(self, x: Tensor) -> Tensor:
        """x: hidden states, [..., h]."""
        up = self.up(x)
        return self.down(F.silu(self.gate(x)) * up if self.gate else F.gelu(up))


class Layer(nn.Module):
    """Attention and an MLP, each with a norm in front and a residual connection around it."""

    def __init__(self, model: Mapping) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(model), norm(model)
        self.attention = Attention(model)
        self.mlp = Experts(model) if model["experts"] > 1 else Mlp(model)

    def forward(self, x: Tensor) -> Tensor:
        """x: hidden states, [b, s, h]."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A language model, on whatever is the default device."""

    def __init__(self, model: Mapping) -> None:
        super().__init__()
        words = (model["vocabulary"], model["hidden"])
        self.words = nn.Embedding(*words)
        self.positions = nn.Embedding(model["sequence"], words[1]) if model["learned"] else None
        self.layers = nn.ModuleList(Layer(model) for _ in range(model["layers"]))
        self.norm = norm(model)
        self.head = None if model["tied"] else nn.Linear(*reversed(words), bias=False)

    def forward(self, tokens: Tensor, recompute: bool = False) -> Tensor:
        """Return the logits, [b, s, V].

        Args:
            tokens: [b, s].
            recompute: whether each layer is a checkpoint.
        """
        x = self.words(tokens)
        if self.positions:
            x = x + self.positions.weight
        with set_checkpoint_early_stop(False):
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        return F.linear(self.norm(x), (self.head or self.words).weight)


def norm(model: Mapping) -> nn.Module:
    """Return a layer norm, or without biases an RMS norm."""
    return nn.LayerNorm(model["hidden"]) if model["biases"] else nn.RMSNorm(model["hidden"])


def build(model: Mapping) -> Transformer:
    """Return a model without storage."""
    with torch.device("meta"):
        return Transformer(model)


def measure(model: Mapping, batch: int = 1, recompute: bool = False) -> dict[str, int]:
    """Count a model's parameters, and the FLOPs of a training step with FlopCounterMode.

    Args:
        model: its configuration.
        batch: sequences per step; batch x sequence x chosen must be divisible by experts.
        recompute: whether each layer is recomputed in the backward pass.

    Returns:
        parameters: of the model.
        active: number of active parameters per token.
        flops: FLOPs of matrix multiplications in the forward and the backward pass.
    """
    made = build(model)
    total = sum(one.numel() for one in made.parameters())
    idle = sum(one.numel() for layer in made.layers if isinstance(layer.mlp, Experts)
               for mlp in layer.mlp.mlps[model["chosen"]:] for one in mlp.parameters())
    tokens = torch.zeros(batch, model["sequence"], dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        made(tokens, recompute).sum().backward()
    return {"parameters": total, "active": total - idle, "flops": counter.get_total_flops()}

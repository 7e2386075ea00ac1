"""Parts of the transformer block that differ from GPT-2's, as in Llama and Nemotron-4.

Grouped-query attention (Ainslie et al. 2023), squared ReLU (So et al. 2021), SwiGLU (Shazeer 2020),
rotary position embeddings (Su et al. 2021), and RMSNorm (Zhang and Sennrich 2019). Each flag
replaces one part and leaves the others as they are; only these flags import this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.device.device import operation
from minimegatron.model import ops
from minimegatron.model.attention import Attention
from minimegatron.model.dropout import EMBEDDING, Dropout
from minimegatron.model.parameters import ParamSpec, add_parameters
from minimegatron.model.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    make_tensor_parallel,
)

if TYPE_CHECKING:
    from minimegatron.model.gpt import MicroBatch


@operation()
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2 of x [..] (So et al. 2021, Primer)."""
    return F.relu(x).square()


@operation()
def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return SiLU(gate) * up [.., f], where x [.., 2f] is gate and up side by side (Shazeer 2020).

    The product is computed in fp32 and rounded once, as in a fused kernel.
    """
    gate, up = x.float().chunk(2, -1)
    return (F.silu(gate) * up).to(x.dtype)


@operation()
def rotary(x: torch.Tensor, rotated: int, base: int) -> torch.Tensor:
    """Rotate pairs of channels by angles that grow with the position (Su et al. 2021, RoPE).

    Channel i is paired with channel i + rotated/2 and turned by position * base^(-2i/rotated), as
    in Megatron-LM and Llama. Angles and products are computed in fp32.

    Args:
        x: queries or keys, [s, n, d], of positions 0 to s - 1.
        rotated: channels of each head that are rotated, an even number; the others stay.
        base: the base of the angles' frequencies.

    Returns:
        A new tensor, [s, n, d].
    """
    cos, sin = rotary_tables(len(x), rotated, base, x.device)
    first, second, rest = x.float().split([rotated // 2, rotated // 2, x.shape[-1] - rotated], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


@lru_cache(maxsize=4)
def rotary_tables(length: int, rotated: int, base: int, device: torch.device
                  ) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, fp32 [s, 1, rotated/2], of the angles of all positions.

    Args:
        length: positions, s.
        rotated: channels of each head that are rotated.
        base: the base of the angles' frequencies.
        device: where the result is created.
    """
    frequencies = base ** -(torch.arange(0, rotated, 2, device=device) / rotated)
    angles = torch.outer(torch.arange(length, device=device), frequencies)[:, None]
    return angles.cos(), angles.sin()


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Divide x [.., h] by its root mean square, and scale by weight [h] (Zhang & Sennrich 2019)."""
    return F.rms_norm(x, weight.shape, weight, epsilon)


def modern_class(config: Config, usual: type[nn.Module]) -> type[nn.Module]:
    """Return the class to build in place of `usual`, which is `usual` itself where no flag differs.

    Args:
        config: the flags.
        usual: a part of GPT-2's block, from gpt.py or attention.py.
    """
    rotary = config.position_embedding_type == "rope"
    modern, is_given = {
        "LayerNorm": (RMSNorm, config.normalization == "RMSNorm"),
        "Attention": (ModernAttention, config.group_query_attention or rotary),
        "MLP": (ModernMLP, config.squared_relu or config.swiglu),
        "Embedding": (WordEmbedding, rotary)}[usual.__name__]
    return modern if is_given else usual


class RMSNorm(nn.Module):
    """Root-mean-square normalization over h, with a scale [h] but neither a mean nor a bias."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        self.epsilon = ctx.config.layernorm_epsilon
        add_parameters(self, ctx, weight=ParamSpec((ctx.config.hidden_size,), init_value=1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize x [s, b, h] to the same shape."""
        return rms_norm(x, self.weight, self.epsilon)


class WordEmbedding(nn.Module):
    """Word embeddings and dropout: rotary attention needs no position embeddings."""

    def __init__(self, ctx: Context, vocab_size: int, is_first: bool = True) -> None:
        super().__init__()
        config = ctx.config
        self.dropout_p, self.tp = config.hidden_dropout, make_tensor_parallel(ctx)
        self.word_embeddings = VocabParallelEmbedding(
            ctx, vocab_size, config.hidden_size, config.init_method_std)

    def forward(self, batch: MicroBatch) -> torch.Tensor:
        """Map tokens [b, s] to hidden states [s, b, h]."""
        x = self.word_embeddings(batch.tokens.t())
        keep = self.tp.hidden_mask(batch.dropout, self.dropout_p, 0, EMBEDDING, x)
        return x if keep is None else ops.dropout(x, keep, self.dropout_p)


class ModernAttention(Attention):
    """Attention whose G key and value heads each serve a/G query heads, with rotary positions.

    The rows of the QKV projection are laid out per group, (G, a/G + 2, d): a group's queries, its
    key, and its value. So a rank's rows are the G/t whole groups of its heads, as in Megatron-LM.
    """

    def __init__(self, ctx: Context, number: int, mask: torch.Tensor | None) -> None:
        super().__init__(ctx, number, mask)
        config = ctx.config
        self.rotated, self.base = 0, config.rotary_base
        if config.position_embedding_type == "rope":
            self.rotated = int(self.head_dim * config.rotary_percent)

    def query_key_value(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """Project x [s, b, h] to queries [s, ba/t, d], and to keys and values [s, bG/t, d]."""
        d = self.head_dim
        qkv = self.linear_qkv(x)
        parts = qkv.view(len(qkv), -1, (self.sharing + 2) * d).split([self.sharing * d, d, d], -1)
        query, key, value = (part.unflatten(-1, (-1, d)).flatten(1, 2) for part in parts)
        if self.rotated:
            query = rotary(query, self.rotated, self.base)
            key = rotary(key, self.rotated, self.base)
        # Copies, so that what is saved for backward does not keep all of `qkv` alive.
        return query.contiguous(), key.contiguous(), value.contiguous()

    def core_attention(self, dropout: Dropout | None, query: torch.Tensor, key: torch.Tensor,
                       value: torch.Tensor) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(d)) V, [s, ba/t, d] like the queries.

        Flash attention reads each key and value head once for all of its queries. Materialized
        attention repeats them first, so it saves neither time nor memory.
        """
        if not self.flash:
            key, value = (each.repeat_interleave(self.sharing, 1) for each in (key, value))
        return super().core_attention(dropout, query, key, value)


class ModernMLP(nn.Module):
    """Two linear layers with a squared ReLU between them, or three with SwiGLU."""

    def __init__(self, ctx: Context) -> None:
        super().__init__()
        config, width = ctx.config, ctx.config.ffn_hidden_size
        self.activation = swiglu if config.swiglu else squared_relu
        # SwiGLU's gate and up projections are one matrix, [gate; up] on every rank.
        blocks = 2 if config.swiglu else 1
        self.linear_fc1 = ColumnParallelLinear(
            ctx, config.hidden_size, blocks * width, config.init_method_std)
        self.linear_fc1.param_specs["weight"].blocks = blocks
        self.linear_fc2 = RowParallelLinear(ctx, width, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states x [s, b, h] to the same shape."""
        return self.linear_fc2(self.activation(self.linear_fc1(x)))

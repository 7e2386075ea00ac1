"""The Transformer layer and its attention against plain PyTorch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minite as te


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class Plain(nn.Module):
    """A pre-norm decoder layer from torch.nn, with the weights of a TransformerLayer."""

    def __init__(self, layer: te.TransformerLayer, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, state = heads, layer.state_dict()
        part = "self_attention.layernorm_qkv."
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, dtype=state[part + "query_weight"].dtype)
                                  for _ in range(2))
        for norm, prefix in ((self.norm1, part), (self.norm2, "layernorm_mlp.")):
            norm.load_state_dict({key: state[f"{prefix}layer_norm_{key}"]
                                  for key in ("weight", "bias")})
        self.qkv = [(state[f"{part}{name}_weight"], state[f"{part}{name}_bias"])
                    for name in ("query", "key", "value")]
        self.proj = [state[f"self_attention.proj.{key}"] for key in ("weight", "bias")]
        self.fc = [[state[f"layernorm_mlp.fc{i}_{key}"] for key in ("weight", "bias")]
                   for i in (1, 2)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s, b, h = x.shape
        q, k, v = (F.linear(self.norm1(x), *weights).view(s, b * self.heads, -1).transpose(0, 1)
                   for weights in self.qkv)
        scores = q.float() @ k.float().transpose(1, 2) * (h // self.heads) ** -0.5
        scores = scores.masked_fill(torch.ones(s, s).triu(1).bool(), -torch.inf)
        y = (scores.softmax(-1) @ v.float()).to(x.dtype).transpose(0, 1).reshape(s, b, h)
        x = x + F.linear(y, *self.proj)
        y = F.gelu(F.linear(self.norm2(x), *self.fc[0]), approximate="tanh")
        return x + F.linear(y, *self.fc[1])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 0.04)])
def test_without_fp8_a_transformer_layer_is_a_plain_one(dtype, tolerance):
    layer = te.TransformerLayer(64, 128, 4, params_dtype=dtype).eval()
    x = torch.randn(16, 2, 64, dtype=dtype)
    torch.testing.assert_close(layer(x), Plain(layer, 64, 4)(x), atol=tolerance, rtol=tolerance)


def test_fused_parameters_and_batch_first_give_the_same_layer():
    split = te.TransformerLayer(64, 128, 4, 2, bias=False, normalization="RMSNorm",
                                activation="swiglu").eval()
    fused = te.TransformerLayer(64, 128, 4, 2, bias=False, normalization="RMSNorm",
                                activation="swiglu", fuse_qkv_params=True,
                                attn_input_format="bshd").eval()
    state, part = split.state_dict(), "self_attention.layernorm_qkv."
    q, k, v = (state.pop(f"{part}{name}_weight").view(2, -1, 64)
               for name in ("query", "key", "value"))
    state[f"{part}weight"] = torch.cat((q, k, v), 1).flatten(0, 1)
    fused.load_state_dict(state)
    x, angles = torch.randn(16, 3, 64), te.RotaryPositionEmbedding(16)(32)
    torch.testing.assert_close(fused(x.transpose(0, 1), rotary_pos_emb=angles).transpose(0, 1),
                               split(x, rotary_pos_emb=angles))
    assert (split(x, rotary_pos_emb=angles) - split(x)).abs().max() > 1e-3


def test_rotary_scores_depend_on_distance_only():
    from minite.transformer import rotate
    angles = te.RotaryPositionEmbedding(16)(20)
    q, k = (torch.randn(1, 1, 1, 16).expand(20, 1, 1, 16) for _ in range(2))
    scores = rotate(q, angles)[:, 0, 0] @ rotate(k, angles)[:, 0, 0].t()
    for distance in range(-10, 10):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))


def test_masks():
    attention = te.DotProductAttention(2, 8, attn_mask_type="no_mask")
    q, k, v = torch.randn(3, 6, 2, 2, 8)
    hidden = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    hidden[:, :, :, 4:] = True
    torch.testing.assert_close(attention(q, k, v, hidden, "padding"), attention(q, k[:4], v[:4]))
    none_hidden = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    torch.testing.assert_close(attention(q, k, v, none_hidden, "padding_causal"),
                               attention(q, k, v, attn_mask_type="causal"))

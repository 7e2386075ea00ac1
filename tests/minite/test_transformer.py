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


def test_fused_parameters_give_the_same_layer():
    split = te.TransformerLayer(64, 128, 4, 2, bias=False, activation="relu").eval()
    fused = te.TransformerLayer(64, 128, 4, 2, bias=False, activation="relu",
                                fuse_qkv_params=True).eval()
    state, part = split.state_dict(), "self_attention.layernorm_qkv."
    q, k, v = (state.pop(f"{part}{name}_weight").view(2, -1, 64)
               for name in ("query", "key", "value"))
    state[f"{part}weight"] = torch.cat((q, k, v), 1).flatten(0, 1)
    fused.load_state_dict(state)
    x = torch.randn(16, 3, 64)
    torch.testing.assert_close(fused(x), split(x))


def test_masks():
    attention = te.DotProductAttention(2, 8, attn_mask_type="no_mask")
    q, k, v = torch.randn(3, 6, 2, 2, 8)
    hidden = torch.zeros(2, 1, 1, 6, dtype=torch.bool)
    hidden[:, :, :, 4:] = True
    torch.testing.assert_close(attention(q, k, v, hidden, "padding"), attention(q, k[:4], v[:4]))
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    torch.testing.assert_close(attention(q, k, v, future, "arbitrary"),
                               attention(q, k, v, attn_mask_type="causal"))

"""A transformer layer of Transformer Engine."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from virtualgpu.packages.refusals import refuse

from .attention import MultiheadAttention
from .module import LayerNormMLP, one_gpu


class TransformerLayer(nn.Module):
    """Self-attention and an MLP, each after a normalization and with a residual."""

    def __init__(self, hidden_size: int, ffn_hidden_size: int, num_attention_heads: int,
                 num_gqa_groups: int | None = None, layernorm_epsilon: float = 1e-5,
                 hidden_dropout: float = 0.1, attention_dropout: float = 0.1, init_method=None,
                 output_layer_init_method=None, layer_number: int | None = None,
                 kv_channels: int | None = None, self_attn_mask_type: str = "causal",
                 window_size=None, layer_type: str = "encoder", attn_input_format: str = "sbhd",
                 normalization: str = "LayerNorm", activation: str = "gelu", bias: bool = True,
                 zero_centered_gamma: bool = False, params_dtype=None, device="cuda",
                 **options) -> None:
        super().__init__()
        options = {key: value for key, value in options.items()
                   if key not in ("fuse_qkv_params", "qkv_weight_interleaved")}
        one_gpu("TransformerLayer", options)
        if layer_type != "encoder":
            refuse("TransformerLayer", layer_type=layer_type)
        kind = {"bias": bias, "params_dtype": params_dtype, "device": device,
                "zero_centered_gamma": zero_centered_gamma, "normalization": normalization,
                "init_method": init_method, "output_layer_init_method": output_layer_init_method}
        self.hidden_dropout = hidden_dropout
        self.self_attention = MultiheadAttention(
            hidden_size, num_attention_heads, kv_channels, attention_dropout, layernorm_epsilon,
            attn_mask_type=self_attn_mask_type, window_size=window_size,
            num_gqa_groups=num_gqa_groups, input_layernorm=True, qkv_format=attn_input_format,
            **kind)
        self.layernorm_mlp = LayerNormMLP(hidden_size, ffn_hidden_size, layernorm_epsilon,
                                          activation=activation, **kind)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                self_attn_mask_type: str | None = None, window_size=None,
                rotary_pos_emb: Tensor | None = None, is_first_microbatch: bool | None = None,
                **options) -> Tensor:
        refuse("TransformerLayer", **{key: value for key, value in options.items()
                                      if value not in (False, True, "no_bias")})
        out = self.self_attention(hidden_states, attention_mask, rotary_pos_emb,
                                  self_attn_mask_type, window_size)
        x = hidden_states + F.dropout(out, self.hidden_dropout, self.training)
        out = self.layernorm_mlp(x)
        return x + F.dropout(out, self.hidden_dropout, self.training)

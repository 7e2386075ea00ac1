"""Core attention that does not materialize the scores (Dao et al. 2022).

Only --use-flash-attn imports this file.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minimegatron.device.dispatch import operation
from minimegatron.model.matmul import to_compute_dtype


@operation()
def flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, heads: int
                    ) -> torch.Tensor:
    """Compute causal attention without materializing the scores and without dropout.

    Query and result are [s, b*heads, d]; key and value have as many heads, or fewer of them.
    """
    s, rows, d = query.shape
    q, k, v = (to_compute_dtype(x.view(s, rows // heads, -1, d).permute(1, 2, 0, 3))
               for x in (query, key, value))
    out = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=key.shape != query.shape).to(value.dtype)
    return out.permute(2, 0, 1, 3).reshape(s, rows, d)

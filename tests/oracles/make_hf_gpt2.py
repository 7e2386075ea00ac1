"""Prints the logits of Hugging Face's GPT-2 module for weights that follow from their names.

    pip install --target /tmp/hf transformers==5.23.0
    PYTHONPATH=/tmp/hf:code:. python -m tests.oracles.make_hf_gpt2 > tests/oracles/hf_gpt2.json
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

CONFIG = {"model_type": "gpt2", "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 12,
          "n_inner": 80, "vocab_size": 24, "layer_norm_epsilon": 1e-3}
TOKENS = torch.arange(2 * 10).reshape(2, 10) * 7 % CONFIG["vocab_size"]  # [b, s]


def weight_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """N(0, 0.2) from the name's hash; around 1 where a norm multiplies."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.2
    return drawn + 1 if "ln_" in name and name.endswith("weight") else drawn


def their_logits(folder: Path) -> torch.Tensor:
    """[b, s, V] of the model that the library reads from a folder."""
    from transformers import GPT2LMHeadModel

    with torch.no_grad():
        return GPT2LMHeadModel.from_pretrained(folder).eval()(TOKENS).logits


def their_model():
    """GPT2LMHeadModel with the weights above. Raises ImportError where it is not installed."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**CONFIG)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(weight_of(name, tuple(weight.shape)))
    return model


def frozen() -> dict:
    import transformers

    with torch.no_grad():
        logits = their_model()(TOKENS).logits
    rows = [[round(value, 6) for value in row] for row in logits.flatten(0, 1).tolist()]
    return {"transformers": transformers.__version__, "torch": torch.__version__, "logits": rows}


if __name__ == "__main__":
    made = frozen()
    rows = ",\n".join(map(json.dumps, made.pop("logits")))
    print(json.dumps(made)[:-1] + ', "logits": [\n' + rows + "]}")

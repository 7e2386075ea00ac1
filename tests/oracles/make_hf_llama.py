"""Prints the logits of Hugging Face's Llama and Nemotron for weights that follow from their names.

    pip install --target /tmp/hf transformers==5.23.0
    PYTHONPATH=/tmp/hf:code:. python -m tests.oracles.make_hf_llama > tests/oracles/hf_llama.json
"""

from __future__ import annotations

import hashlib
import json

import torch

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 48, "vocab_size": 24,
         "max_position_embeddings": 16, "tie_word_embeddings": False}
TOKENS = torch.arange(2 * 10).reshape(2, 10) * 7 % SIZES["vocab_size"]  # [b, s]
MODELS = ("llama", "nemotron")


def weight_of(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Return N(0, 0.2) from the name's hash."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.2


def their_model(name: str):
    """The library's model with weights from their names. Raises ImportError without the library."""
    import transformers

    rope = {"rope_type": "default", "rope_theta": 500.0}
    if name == "llama":
        config = transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-3, rope_parameters=rope)
        model = transformers.LlamaForCausalLM(config).eval()
    else:
        config = transformers.NemotronConfig(
            **SIZES, norm_eps=1e-3, hidden_act="relu2",
            rope_parameters=rope | {"partial_rotary_factor": 0.5})
        model = transformers.NemotronForCausalLM(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(weight_of(key, tuple(weight.shape)))
    return model


def frozen() -> dict:
    import transformers

    seen = {"transformers": transformers.__version__, "torch": torch.__version__}
    for name in MODELS:
        with torch.no_grad():
            logits = their_model(name)(TOKENS).logits
        seen[name] = [[round(value, 6) for value in row] for row in logits.flatten(0, 1).tolist()]
    return seen


if __name__ == "__main__":
    made = frozen()
    rows = {name: made.pop(name) for name in MODELS}
    parts = [f'"{name}": [\n' + ",\n".join(map(json.dumps, rows[name])) + "]" for name in MODELS]
    print(json.dumps(made)[:-1] + ", " + ", ".join(parts) + "}")

"""GPT-2's trained weights for gpt_layers.py, and the tokenizer that belongs to them.

transformers fetches them by name (`gpt2`, over the network, once) or reads a folder that
`save_pretrained` wrote. Its linears are [in, out] ("Conv1D"), ours are torch's [out, in].
"""

from __future__ import annotations

from typing import Any

import torch

from gpt_layers import Size
from labcore.errors import LabError

IN_A_BLOCK = {"norm_1": "ln_1", "qkv": "attn.c_attn", "proj": "attn.c_proj",
              "norm_2": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
LINEARS = ("qkv", "proj", "up", "down")
# What gpt_layers.py computes; a checkpoint that wants something else would be run wrongly.
OURS = {"model_type": ["gpt2"], "activation_function": ["gelu_new", "gelu_pytorch_tanh"],
        "n_inner": [None], "layer_norm_epsilon": [1e-5], "scale_attn_weights": [True],
        "scale_attn_by_inverse_layer_idx": [False], "tie_word_embeddings": [True]}


class Pretrained:
    """size, tokenizer, and `layer(index)`: the weights of one of gpt_layers' layers, by name."""

    def __init__(self, name: str) -> None:
        """Raises LabError for what cannot be loaded or is no GPT-2."""
        from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel  # slow to import
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        try:
            config = AutoConfig.from_pretrained(name)
            for key, wanted in OURS.items():
                if getattr(config, key, wanted[0]) not in wanted:
                    raise LabError(f"--pretrained {name}: its {key} is {getattr(config, key)}; "
                                   f"gpt_layers.py computes {wanted[0]}")
            self.tokenizer = HubTokenizer(AutoTokenizer.from_pretrained(name))
            model = GPT2LMHeadModel.from_pretrained(name, dtype=torch.float32)
        except (OSError, ValueError, ImportError) as error:
            raise LabError(f"--pretrained {name} cannot be loaded ({str(error).splitlines()[0]}); "
                           "without a network, give a folder with config.json, model.safetensors "
                           "and the tokenizer's files") from error
        self.weights = model.transformer.state_dict()
        self.size = Size(config.n_layer, config.n_embd, config.n_head, config.n_positions,
                         config.vocab_size)

    def layer(self, index: int) -> dict[str, torch.Tensor]:
        """Return a layer's parameters; layer 0 is the embedding and the last one the head."""
        if index == 0:
            return {"words.weight": self.weights["wte.weight"],
                    "positions.weight": self.weights["wpe.weight"]}
        if index == self.size.layers + 1:
            return {f"norm.{kind}": self.weights[f"ln_f.{kind}"] for kind in ("weight", "bias")}
        parameters = {}
        for ours, theirs in IN_A_BLOCK.items():
            weight = self.weights[f"h.{index - 1}.{theirs}.weight"]
            parameters[f"{ours}.weight"] = weight.t() if ours in LINEARS else weight
            parameters[f"{ours}.bias"] = self.weights[f"h.{index - 1}.{theirs}.bias"]
        return parameters


class HubTokenizer:
    """transformers' tokenizer, with the names of the course's."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.vocab_size = tokenizer, len(tokenizer)
        self.eod = tokenizer.eos_token_id
        if self.eod is None:
            raise LabError(f"--pretrained: the tokenizer of {tokenizer.name_or_path} has no token "
                           "that ends a text")

    def tokenize_batch(self, texts: list[str]) -> list[list[int]]:
        # Longer than the model's positions is fine: samples are cut later.
        return self._tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]

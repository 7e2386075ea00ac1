"""With Llama's and Nemotron's weights, the modern block computes Hugging Face's logits.

What the library's models give is kept in hf_llama.json; `pytest -m oracle` runs them again (see
make_hf_llama.py).
"""

import json
from pathlib import Path

import pytest
import torch

from minimegatron import grid
from minimegatron.arguments import parse_arguments
from minimegatron.context import Context, MicroBatch
from minimegatron.device.device import CpuDevice
from minimegatron.grid import Grid, Group
from minimegatron.model.gpt import Stage

from .make_hf_llama import MODELS, SIZES, TOKENS, frozen, weight_of

FROZEN = json.loads(Path(__file__).with_name("hf_llama.json").read_text())
FLAGS = ("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 48 "
         "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights "
         "--disable-bias-linear --position-embedding-type rope --rotary-base 500 "
         "--layernorm-epsilon 1e-3 --seq-length 10 --max-position-embeddings 10 "
         "--attention-dropout 0 --hidden-dropout 0 --micro-batch-size 2 --lr 1 --train-iters 1 "
         "--data-path x --vocab-file x --merge-file x --device cpu ")
OWN = {"llama": "--swiglu --normalization RMSNorm", "nemotron": "--squared-relu "
       "--rotary-percent 0.5"}
H, WIDE, V, D, GROUPS = 32, SIZES["intermediate_size"], SIZES["vocab_size"], 8, 2


def our_stage(flags: str) -> Stage:
    alone = Group((0,), 0, None)
    ctx = Context(parse_arguments(flags.split(), {}),
                  Grid(0, 1, **dict.fromkeys(grid.GROUPS, alone)), CpuDevice())
    return Stage(ctx, V, range(2))


def our_weights(model: str) -> dict[str, torch.Tensor]:
    """The library's weights under our names, and in our layout."""
    def norm(ours: str, theirs: str) -> dict[str, torch.Tensor]:
        weight = weight_of(f"model.{theirs}.weight", (H,))
        if model == "llama":
            return {f"{ours}.weight": weight}
        # Nemotron's norms multiply by 1 + weight.
        return {f"{ours}.weight": 1 + weight, f"{ours}.bias": weight_of(
            f"model.{theirs}.bias", (H,))}

    weights = {"embedding.word_embeddings.weight": weight_of("model.embed_tokens.weight", (V, H)),
               "output_layer.weight": weight_of("lm_head.weight", (V, H)),
               **norm("decoder.final_layernorm", "norm")}
    for layer in range(2):
        ours, theirs = f"decoder.layers.{layer}", f"layers.{layer}"
        query, key, value = (
            weight_of(f"model.{theirs}.self_attn.{name}_proj.weight", (rows, H)).view(
                GROUPS, -1, H) for name, rows in (("q", H), ("k", GROUPS * D), ("v", GROUPS * D)))
        first = [weight_of(f"model.{theirs}.mlp.{name}_proj.weight", (WIDE, H))
                 for name in (("gate", "up") if model == "llama" else ("up",))]
        weights |= {
            f"{ours}.self_attention.linear_qkv.weight":
                torch.cat([query, key, value], 1).flatten(0, 1),
            f"{ours}.self_attention.linear_proj.weight":
                weight_of(f"model.{theirs}.self_attn.o_proj.weight", (H, H)),
            f"{ours}.mlp.linear_fc1.weight": torch.cat(first),
            f"{ours}.mlp.linear_fc2.weight":
                weight_of(f"model.{theirs}.mlp.down_proj.weight", (H, WIDE)),
            **norm(f"{ours}.input_layernorm", f"{theirs}.input_layernorm"),
            **norm(f"{ours}.pre_mlp_layernorm", f"{theirs}.post_attention_layernorm")}
    return weights


@pytest.mark.parametrize("attention", ["", "--use-flash-attn"])
@pytest.mark.parametrize("model", MODELS)
def test_the_logits_are_hugging_faces(model, attention):
    stage = our_stage(f"{FLAGS} {OWN[model]} {attention}")
    stage.load_state_dict(our_weights(model))
    with torch.no_grad():
        batch = MicroBatch(TOKENS, None, None, None)
        x = stage.embedding(batch)
        for layer in stage.decoder.layers.values():
            x = layer(x, batch)
        logits = stage.logits(x).transpose(0, 1).flatten(0, 1)
    torch.testing.assert_close(logits, torch.tensor(FROZEN[model]), rtol=0, atol=1e-4)


@pytest.mark.oracle
def test_hugging_face_still_does_what_is_kept():
    now = frozen()
    for model in MODELS:
        torch.testing.assert_close(torch.tensor(now[model]), torch.tensor(FROZEN[model]),
                                   rtol=0, atol=1e-5)

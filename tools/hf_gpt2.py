#!/usr/bin/env python3
"""Carry a model between a checkpoint of the trainer and Hugging Face's GPT-2 format.

    python tools/hf_gpt2.py to-hf SAVE HF_FOLDER [--vocab-size N]
    python tools/hf_gpt2.py from-hf HF_FOLDER SAVE [--make-vocab-size-divisible-by N]

SAVE is what --save named (its tracker says which iteration), or one iter_ folder of it; of one
rank (tensor- and pipeline-parallel size 1). HF_FOLDER holds config.json and model.safetensors, or
the older pytorch_model.bin. Weights keep their bits. from-hf prints the trainer's flags.

Both hold the same model; they differ in the names, in the linears' orientation (GPT-2's are
[in, out]) and in the order of query, key and value: (heads, 3, width) in Megatron's matrix,
(3, heads, width) in GPT-2's.
"""

from __future__ import annotations

import argparse
import json
import pickle
import re
import sys
from pathlib import Path

import torch

import safetensors_file as safetensors
from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting
from minimegatron.arguments.table import ModernBlock
from minimegatron.checkpoint.checksums import find_problems, sha256, write_sums
from minimegatron.checkpoint.files import read_state
from minimegatron.checkpoint.load import read_tracker
from minimegatron.checkpoint.save import (
    TRACKER,
    VERSION,
    folder_of,
    publish,
    unfinished,
    write_synced,
)
from minimegatron.data.atomic import atomic_file
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError

SHARD = Path("mp_rank_00") / "model_optim_rng.pt"
ENDS = {"embedding.word_embeddings.weight": "transformer.wte.weight",
        "embedding.position_embeddings.weight": "transformer.wpe.weight",
        "decoder.final_layernorm.weight": "transformer.ln_f.weight",
        "decoder.final_layernorm.bias": "transformer.ln_f.bias"}
IN_A_LAYER = {"input_layernorm": "ln_1", "self_attention.linear_qkv": "attn.c_attn",
              "self_attention.linear_proj": "attn.c_proj", "pre_mlp_layernorm": "ln_2",
              "mlp.linear_fc1": "mlp.c_fc", "mlp.linear_fc2": "mlp.c_proj"}
WORDS = "embedding.word_embeddings.weight"
# What GPT2Config leaves out of config.json when it has the usual value.
USUAL = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "n_inner": None,
         "vocab_size": 50257, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
         "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
         "add_cross_attention": False, "tie_word_embeddings": True}
OURS = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"), "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,),
        "tie_word_embeddings": (True,)}


def names(layers: int) -> dict[str, str]:
    """{Megatron's name: GPT-2's} of all weights."""
    return ENDS | {f"decoder.layers.{n}.{ours}.{kind}": f"transformer.h.{n}.{theirs}.{kind}"
                   for n in range(layers) for ours, theirs in IN_A_LAYER.items()
                   for kind in ("weight", "bias")}


def to_gpt2(name: str, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """One of Megatron's weights as GPT-2 has it."""
    if "linear_qkv" in name:
        weight = weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    return (weight.t() if "linear" in name and weight.dim() == 2 else weight).contiguous()


def to_megatron(name: str, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The inverse of `to_gpt2`."""
    if "linear" in name and weight.dim() == 2:
        weight = weight.t()
    if "linear_qkv" in name:
        weight = weight.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)
    return weight.contiguous()


def to_hf(checkpoint: Path, out: Path, vocab_size: int | None) -> None:
    """Write `out`/config.json and model.safetensors. Raises UserError.

    vocab_size: keep only these rows of the padded word embedding.
    """
    if (out / "config.json").exists():
        raise UserError(f"{out} holds a model already: name a new folder")
    state, source = read_checkpoint(checkpoint)
    args, model = state["args"], state["model"]
    heads, width = args["num_attention_heads"], args["hidden_size"]
    for name in names_affecting(STATE, ModernBlock):
        if args.get(name, (usual := getattr(ModernBlock, name))) != usual:
            raise UserError(f"{source} was trained with {name} {args[name]}: GPT-2 has {usual}")
    if args["kv_channels"] * heads != width:
        raise UserError(f"{source} was trained with --kv-channels {args['kv_channels']}: GPT-2 has "
                        f"hidden size / heads, {width // heads}")
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **USUAL,
              "n_embd": width, "n_layer": args["num_layers"], "n_head": heads,
              "n_positions": args["max_position_embeddings"], "n_inner": args["ffn_hidden_size"],
              "layer_norm_epsilon": args["layernorm_epsilon"],
              "resid_pdrop": args["hidden_dropout"], "embd_pdrop": args["hidden_dropout"],
              "attn_pdrop": args["attention_dropout"], "bos_token_id": None, "eos_token_id": None,
              "dtype": str(next(iter(model.values())).dtype).removeprefix("torch.")}
    rows = config["vocab_size"] = args["padded_vocab_size"]
    named, expected = names(args["num_layers"]), shapes(config)
    check(model, {ours: to_megatron(ours, torch.empty(expected[theirs], device="meta"), heads).shape
                  for ours, theirs in named.items()}, source)
    if vocab_size is not None:
        config["vocab_size"] = vocab_size
        if not 0 < vocab_size <= rows:
            raise UserError(f"--vocab-size {vocab_size}: {source} has {rows} rows; nearest: {rows}")
    weights = {theirs: to_gpt2(ours, model[ours], heads) for ours, theirs in named.items()}
    weights[ENDS[WORDS]] = weights[ENDS[WORDS]][:config["vocab_size"]]
    try:
        out.mkdir(parents=True, exist_ok=True)
        safetensors.write(out / "model.safetensors", weights)
        with atomic_file(out / "config.json") as file:
            file.write(json.dumps(config, indent=1).encode())
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}") from error


def read_checkpoint(path: Path) -> tuple[dict, Path]:
    """(state, file) of the checkpoint of one rank at `path`. Raises UserError."""
    folder = path
    if not path.name.startswith("iter_"):
        iteration = read_tracker(path / TRACKER)
        if not isinstance(iteration, int):
            raise UserError(iteration or f"{path} has no {TRACKER}: give the folder that --save "
                            "named, or an iter_ folder in it")
        folder = folder_of(path, iteration)
    if wrong := find_problems(folder):
        raise UserError(f"{folder}: {'; '.join(wrong)}")
    ranks = sorted(child.name for child in folder.glob("mp_rank_*"))
    if ranks != [SHARD.parent.name]:
        raise UserError(f"{folder} is divided among {', '.join(ranks)}: only a model trained with "
                        "tensor- and pipeline-parallel size 1 can be carried over")
    state = read_state(folder / SHARD)
    if "model" not in state:
        raise UserError(f"{folder / SHARD} holds a part of a model, not a whole one")
    return state, folder / SHARD


def from_hf(folder: Path, save: Path, divisor: int) -> str:
    """Write an iteration 0 into `save`; returns the flags to train it with. Raises UserError."""
    if (save / TRACKER).exists() or folder_of(save, 0).exists():
        raise UserError(f"{save} holds checkpoints already: name a new folder")
    config = read_config(folder / "config.json")
    theirs, source = read_weights(folder)
    check(theirs, shapes(config), source)
    model = {ours: to_megatron(ours, theirs[hf], config["n_head"])
             for ours, hf in names(config["n_layer"]).items()}
    rows = pad_vocab_size(config["vocab_size"], divisor, 1)
    # A row of zeros would be no padding: GPT-2's logits are far below 0. The mean row's is the mean
    # logit, and so (Jensen) the n rows take at most n / vocab_size of the others' probability.
    padding = model[WORDS].float().mean(0).to(model[WORDS].dtype)
    model[WORDS] = torch.cat([model[WORDS], padding.expand(rows - config["vocab_size"], -1)])
    width, layers, heads = config["n_embd"], config["n_layer"], config["n_head"]
    defaults = {name: getattr(Config(), name) for name in names_affecting(STATE, Config)}
    args = {**defaults, "num_layers": layers, "layers_per_chunk": (layers,), "hidden_size": width,
            "num_attention_heads": heads, "kv_channels": width // heads,
            "max_position_embeddings": config["n_positions"], "padded_vocab_size": rows,
            "make_vocab_size_divisible_by": divisor,
            "ffn_hidden_size": inner_width(config),
            "layernorm_epsilon": config["layer_norm_epsilon"], "hidden_dropout": 0.1,
            "attention_dropout": 0.1, "consumed_train_samples": 0, "consumed_valid_samples": 0}
    state = {"args": args, "checkpoint_version": VERSION, "iteration": 0, "model": model}
    final = folder_of(save, 0)
    try:
        write_synced(unfinished(final) / SHARD, state)
        write_sums(unfinished(final), {str(SHARD): sha256(unfinished(final) / SHARD)})
        publish(final, 0)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
        raise UserError(f"{save} cannot be written: {error}") from error
    shown = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size",
             "max_position_embeddings", "layernorm_epsilon")
    flags = " ".join(f"--{name.replace('_', '-')} {args[name]}" for name in shown)
    return f"--load {save} --finetune --make-vocab-size-divisible-by {divisor} {flags}"


def read_config(path: Path) -> dict:
    """GPT2Config's values. Raises UserError for a model that is not GPT-2's, or not ours."""
    try:
        found = json.loads(path.read_text())
        kind = found["model_type"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not the config.json of a model ({error!r})") from error
    if kind != "gpt2":
        raise UserError(f"{path}: model_type {kind!r} is not possible; nearest: 'gpt2'")
    config = USUAL | found
    for name, allowed in OURS.items():
        if config[name] not in allowed:
            raise UserError(f"{path}: {name} {config[name]!r} is not what the trainer computes; "
                            f"nearest: {allowed[0]!r}")
    sizes = ("n_embd", "n_layer", "n_head", "n_positions", "vocab_size")
    for name in (*sizes, *(["n_inner"] if config["n_inner"] is not None else [])):
        if type(config[name]) is not int or config[name] < 1:
            raise UserError(f"{path}: {name} {config[name]!r} is not a positive whole number")
    if config["n_embd"] % config["n_head"]:
        raise UserError(f"{path}: n_embd {config['n_embd']} is not divisible by n_head "
                        f"{config['n_head']}")
    return config


def read_weights(folder: Path) -> tuple[safetensors.Weights, Path]:
    """(weights named as GPT2LMHeadModel does, file). Raises UserError."""
    path = folder / "model.safetensors"
    if path.exists():
        weights = safetensors.read(path)
    else:
        path = folder / "pytorch_model.bin"
        if not path.exists():
            parts = " (it is in parts: save it again as one file)" * any(
                folder.glob("*.index.json"))
            raise UserError(f"{folder} has neither model.safetensors nor {path.name}{parts}")
        try:
            weights = dict(torch.load(path, map_location="cpu", weights_only=True))
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
                ValueError) as error:
            raise UserError(f"{path} is not a file of weights: {error}") from error
    head = weights.pop("lm_head.weight", None)
    # GPT2Model alone has no prefix; old files hold the causal mask as attn.bias.
    named = {f"transformer.{name.removeprefix('transformer.')}": weight
             for name, weight in weights.items()
             if not re.search(r"\.attn\.(masked_)?bias$", name)}
    if head is not None and not torch.equal(head, named.get(ENDS[WORDS], head[:0])):
        raise UserError(f"{path}: lm_head.weight is not the word embedding, but the trainer ties "
                        "them")
    return named, path


def inner_width(config: dict) -> int:
    return config["n_inner"] or 4 * config["n_embd"]


def shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """{GPT-2's name: shape} of all weights."""
    h, inner = config["n_embd"], inner_width(config)
    linears = {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, inner),
               "mlp.c_proj": (inner, h)}
    out = {"transformer.wte.weight": (config["vocab_size"], h),
           "transformer.wpe.weight": (config["n_positions"], h)}
    for name in list(names(config["n_layer"]).values())[2:]:
        linear = linears.get(".".join(name.split(".")[3:5]), (h,))
        out[name] = linear if name.endswith("weight") else linear[-1:]
    return out


def check(found: safetensors.Weights, expected: dict[str, tuple[int, ...]], source: Path) -> None:
    """Raises UserError unless `found` has these names and shapes, and one dtype."""
    for name in expected.keys() ^ found.keys():
        word = "lacks" if name in expected else "has an unknown"
        raise UserError(f"{source} {word} {name}")
    dtypes = {weight.dtype for weight in found.values()}
    if len(dtypes) > 1 or not dtypes <= set(safetensors.DTYPES.values()):
        raise UserError(f"{source} should have weights of one dtype of fp32, fp16, bf16, but has "
                        f"{', '.join(sorted(map(str, dtypes)))}")
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise UserError(f"{source}: {name} has the shape {tuple(found[name].shape)}, and "
                            f"should have {tuple(shape)}")


def main(argv: list[str] | None = None) -> int:
    """The program: 0, or 1 with `error: TEXT` on stderr."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    out = ways.add_parser("to-hf", help="from the trainer to Hugging Face")
    out.add_argument("source", type=Path, metavar="SAVE")
    out.add_argument("target", type=Path, metavar="HF_FOLDER")
    out.add_argument("--vocab-size", type=int, help="leave out the rows that pad the vocabulary")
    into = ways.add_parser("from-hf", help="from Hugging Face to the trainer")
    into.add_argument("source", type=Path, metavar="HF_FOLDER")
    into.add_argument("target", type=Path, metavar="SAVE")
    into.add_argument("--make-vocab-size-divisible-by", type=int, default=128, metavar="N",
                      help="pad the vocabulary to a multiple of this (128)")
    given = parser.parse_args(argv)
    try:
        if given.way == "to-hf":
            to_hf(given.source, given.target, given.vocab_size)
        elif given.make_vocab_size_divisible_by < 1:
            raise UserError("--make-vocab-size-divisible-by "
                            f"{given.make_vocab_size_divisible_by} is not possible; nearest: 1")
        else:
            print("the trainer's flags:",
                  from_hf(given.source, given.target, given.make_vocab_size_divisible_by))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

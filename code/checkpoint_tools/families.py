"""The models of Hugging Face that the trainer can hold: their settings, names, and matrices.

The trainer fuses what Hugging Face's Llama keeps apart: queries, keys, and values in one matrix, a
group of heads after another, and SwiGLU's gate and up projections in another one. GPT-2's linear
layers are [in, out], and its fused matrix has all queries first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting, spelled
from minimegatron.checkpoint.files import LAYOUT
from minimegatron.errors import UserError

Shape = tuple[int, ...]
# Flags that affect what is saved, and that a family does not prescribe. (The width of a head may
# follow from other settings, and `Family.write` compares it itself.)
NOT_THE_MODEL = (*LAYOUT, "kv_channels", "tokenizer_type")


class Weight(NamedTuple):
    """One of the trainer's parameters in a family.

    Attributes:
        shapes: {Hugging Face's name: shape} of the tensors that hold it.
        split: returns those tensors, given the parameter.
        join: the inverse.
    """

    shapes: Mapping[str, Shape]
    split: Callable[[torch.Tensor], Sequence[torch.Tensor]]
    join: Callable[[Sequence[torch.Tensor]], torch.Tensor]


def same(name: str, *shape: int) -> Weight:
    """Return a parameter that both sides store alike."""
    return Weight({name: shape}, lambda weight: [weight], lambda parts: parts[0])


class Family(ABC):
    """A kind of model, by its `model_type` in config.json.

    Attributes:
        model_type: the type.
        sizes: {setting of config.json: flag} of positive integers.
        fixed: {setting: values that the trainer computes, the usual one first}.
        usual: settings that config.json may leave out.
    """

    model_type: str
    sizes: ClassVar[Mapping[str, str]]
    fixed: ClassVar[Mapping[str, tuple]]
    usual: ClassVar[Mapping[str, Any]]

    def read(self, found: Mapping[str, Any], path: object) -> dict[str, Any]:
        """Return the trainer's flags for the settings `found` in config.json, and "vocabulary".

        Raises UserError for what the trainer does not compute; `path` is for its text.
        """
        settings = {**self.usual, **{name: values[0] for name, values in self.fixed.items()},
                    **found}
        for name, values in self.fixed.items():
            if settings[name] not in values:
                raise UserError(f"{path}: {name} {settings[name]!r} is not what the trainer "
                                f"computes; nearest: {values[0]!r}")
        flags = self.derive(settings, path)
        for name, flag in self.sizes.items():
            value = settings.get(name)
            if type(value) is not int or value < 1:
                raise UserError(f"{path}: {name} {value!r} is not a positive whole number")
            flags[flag] = value
        if flags["hidden_size"] % flags["num_attention_heads"] and "kv_channels" not in flags:
            width, heads = self.named("hidden_size"), self.named("num_attention_heads")
            raise UserError(f"{path}: {width} {settings[width]} is not divisible by {heads} "
                            f"{settings[heads]}")
        flags.setdefault("kv_channels", flags["hidden_size"] // flags["num_attention_heads"])
        return flags

    def named(self, flag: str) -> str:
        """Return the setting of config.json that a flag follows from."""
        return next(name for name, other in self.sizes.items() if other == flag)

    def write(self, args: Mapping[str, Any], source: object) -> dict[str, Any]:
        """Return config.json for a checkpoint's arguments, without the vocabulary.

        Raises UserError, about `source`, for a model that is not of this family.
        """
        settings = {**self.usual, **{name: values[0] for name, values in self.fixed.items()},
                    **{name: args[flag] for name, flag in self.sizes.items()
                       if flag != "vocabulary"}, **self.settings(args)}
        model = {"vocabulary": args["padded_vocab_size"], **self.read(
            {**settings, self.named("vocabulary"): args["padded_vocab_size"]}, source)}
        for name in names_affecting(STATE, Config):
            wanted = model.get(name, getattr(Config(), name))
            if name not in NOT_THE_MODEL and args.get(name, wanted) != wanted:
                raise UserError(f"{source} was trained with {spelled(name)} {args[name]}: "
                                f"{self.model_type} has {wanted}")
        if args["kv_channels"] != model["kv_channels"]:
            raise UserError(f"{source} was trained with --kv-channels {args['kv_channels']}: "
                            f"{self.model_type} has hidden size / heads, {model['kv_channels']}")
        return {"model_type": self.model_type, "architectures": [self.architecture], **settings}

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The class of transformers that holds it."""

    @abstractmethod
    def derive(self, settings: Mapping[str, Any], path: object) -> dict[str, Any]:
        """Return the flags that do not follow from `sizes`. Raises UserError."""

    @abstractmethod
    def settings(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of config.json that do not follow from `sizes`."""

    @abstractmethod
    def weights(self, flags: Mapping[str, Any], rows: int) -> dict[str, Weight]:
        """Return all parameters by the trainer's names.

        Args:
            flags: the trainer's.
            rows: of the vocabulary in Hugging Face's tensors.
        """

    def canonical(self, name: str) -> str | None:
        """Return today's name of a tensor in an old file; None if the model ignores it."""
        return name


class Gpt2(Family):
    """GPT-2 (Radford et al. 2019)."""

    model_type, architecture = "gpt2", "GPT2LMHeadModel"
    sizes: ClassVar = {"n_embd": "hidden_size", "n_layer": "num_layers",
                       "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
                       "n_inner": "ffn_hidden_size", "vocab_size": "vocabulary"}
    fixed: ClassVar = {"activation_function": ("gelu_new", "gelu_pytorch_tanh"),
                       "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
                       "add_cross_attention": (False,), "tie_word_embeddings": (True,)}
    usual: ClassVar = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
                       "vocab_size": 50257, "layer_norm_epsilon": 1e-5}

    def read(self, found, path):
        if found.get("n_inner") is None and isinstance(width := found.get("n_embd", 768), int):
            found = {**found, "n_inner": 4 * width}
        return super().read(found, path)

    def derive(self, settings, path):
        return {"layernorm_epsilon": settings["layer_norm_epsilon"]}

    def settings(self, args):
        return {"layer_norm_epsilon": args["layernorm_epsilon"],
                "resid_pdrop": args["hidden_dropout"], "embd_pdrop": args["hidden_dropout"],
                "attn_pdrop": args["attention_dropout"], "bos_token_id": None,
                "eos_token_id": None}

    def weights(self, flags, rows):
        h, inner, heads = (flags["hidden_size"], flags["ffn_hidden_size"],
                           flags["num_attention_heads"])

        def fuse(weight: torch.Tensor) -> torch.Tensor:
            return weight.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2)

        def divide(weight: torch.Tensor) -> torch.Tensor:
            return weight.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)

        linears = {"self_attention.linear_qkv": ("attn.c_attn", h, 3 * h),
                   "self_attention.linear_proj": ("attn.c_proj", h, h),
                   "mlp.linear_fc1": ("mlp.c_fc", h, inner),
                   "mlp.linear_fc2": ("mlp.c_proj", inner, h)}
        found = {"embedding.word_embeddings.weight": same("transformer.wte.weight", rows, h),
                 "embedding.position_embeddings.weight": same(
                     "transformer.wpe.weight", flags["max_position_embeddings"], h)}
        for kind in ("weight", "bias"):
            found[f"decoder.final_layernorm.{kind}"] = same(f"transformer.ln_f.{kind}", h)
        for number in range(flags["num_layers"]):
            here, there = f"decoder.layers.{number}", f"transformer.h.{number}"
            for ours, theirs in (("input_layernorm", "ln_1"), ("pre_mlp_layernorm", "ln_2")):
                for kind in ("weight", "bias"):
                    found[f"{here}.{ours}.{kind}"] = same(f"{there}.{theirs}.{kind}", h)
            for ours, (theirs, inputs, outputs) in linears.items():
                is_fused = ours.endswith("qkv")
                found[f"{here}.{ours}.weight"] = Weight(
                    {f"{there}.{theirs}.weight": (inputs, outputs)},
                    lambda weight, f=is_fused: [(divide(weight) if f else weight).t()],
                    lambda parts, f=is_fused: fuse(parts[0].t()) if f else parts[0].t())
                found[f"{here}.{ours}.bias"] = Weight(
                    {f"{there}.{theirs}.bias": (outputs,)},
                    lambda weight, f=is_fused: [divide(weight) if f else weight],
                    lambda parts, f=is_fused: fuse(parts[0]) if f else parts[0])
        return found

    def canonical(self, name):
        # GPT2Model alone has no prefix; old files hold the causal mask.
        name = f"transformer.{name.removeprefix('transformer.')}"
        return None if name.endswith((".attn.bias", ".attn.masked_bias")) else name


class Llama(Family):
    """Llama (Touvron et al. 2023) with grouped queries, without rescaled RoPE frequencies."""

    model_type, architecture = "llama", "LlamaForCausalLM"
    sizes: ClassVar = {"hidden_size": "hidden_size", "num_hidden_layers": "num_layers",
                       "num_attention_heads": "num_attention_heads",
                       "intermediate_size": "ffn_hidden_size",
                       "num_key_value_heads": "num_query_groups", "vocab_size": "vocabulary",
                       "max_position_embeddings": "max_position_embeddings"}
    fixed: ClassVar = {"hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
                       "rope_scaling": (None, {"rope_type": "default"})}
    usual: ClassVar = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False,
                       "max_position_embeddings": 2048}

    def read(self, found, path):
        if found.get("num_key_value_heads") is None and "num_attention_heads" in found:
            found = {**found, "num_key_value_heads": found["num_attention_heads"]}
        return super().read(found, path)

    def derive(self, settings, path):
        rope = settings.get("rope_parameters") or {}
        theta = settings.get("rope_theta", rope.get("rope_theta", 10000.0))
        if not isinstance(theta, int | float) or not math.isfinite(theta):
            raise UserError(f"{path}: rope_theta {theta!r} is not a number")
        heads, groups = settings["num_attention_heads"], settings["num_key_value_heads"]
        if isinstance(groups, int) and isinstance(heads, int) and groups and heads % groups:
            raise UserError(f"{path}: num_attention_heads {heads} is not divisible by "
                            f"num_key_value_heads {groups}")
        for name, value, usual in (
                ("rope_parameters", rope.get("rope_type", "default"), "default"),
                ("rope_theta", theta, int(theta)),
                ("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0), 1.0)):
            if value != usual:
                raise UserError(f"{path}: {name} {value!r} is not what the trainer computes; "
                                f"nearest: {usual!r}")
        flags = {"layernorm_epsilon": settings["rms_norm_eps"], "rotary_base": int(theta),
                 "group_query_attention": True, "swiglu": True, "normalization": "RMSNorm",
                 "position_embedding_type": "rope", "add_bias_linear": False,
                 "untie_embeddings_and_output_weights": not settings["tie_word_embeddings"],
                 "attention_dropout": 0.0, "hidden_dropout": 0.0}
        return flags | ({"kv_channels": settings["head_dim"]} if settings.get("head_dim") else {})

    def write(self, args, source):
        if not args["group_query_attention"]:
            args = {**args, "group_query_attention": True,
                    "num_query_groups": args["num_attention_heads"]}
        return super().write(args, source)

    def settings(self, args):
        return {"rms_norm_eps": args["layernorm_epsilon"], "head_dim": args["kv_channels"],
                "rope_theta": float(args["rotary_base"]),
                "tie_word_embeddings": not args["untie_embeddings_and_output_weights"],
                "bos_token_id": None, "eos_token_id": None}

    def weights(self, flags, rows):
        h, inner, width = flags["hidden_size"], flags["ffn_hidden_size"], flags["kv_channels"]
        heads, groups = flags["num_attention_heads"], flags["num_query_groups"]
        queries, keys = heads * width, groups * width

        def divide(weight: torch.Tensor) -> list[torch.Tensor]:
            per_group = weight.unflatten(0, (groups, heads // groups + 2, width))
            return [part.flatten(0, 2) for part in per_group.split((heads // groups, 1, 1), 1)]

        def fuse(parts: Sequence[torch.Tensor]) -> torch.Tensor:
            return torch.cat([part.unflatten(0, (groups, -1, width)) for part in parts],
                             1).flatten(0, 2)

        found = {"embedding.word_embeddings.weight": same("model.embed_tokens.weight", rows, h),
                 "decoder.final_layernorm.weight": same("model.norm.weight", h)}
        if flags["untie_embeddings_and_output_weights"]:
            found["output_layer.weight"] = same("lm_head.weight", rows, h)
        for number in range(flags["num_layers"]):
            here, there = f"decoder.layers.{number}", f"model.layers.{number}"
            found[f"{here}.input_layernorm.weight"] = same(f"{there}.input_layernorm.weight", h)
            found[f"{here}.pre_mlp_layernorm.weight"] = same(
                f"{there}.post_attention_layernorm.weight", h)
            found[f"{here}.self_attention.linear_qkv.weight"] = Weight(
                {f"{there}.self_attn.{name}_proj.weight": (size, h)
                 for name, size in (("q", queries), ("k", keys), ("v", keys))}, divide, fuse)
            found[f"{here}.self_attention.linear_proj.weight"] = same(
                f"{there}.self_attn.o_proj.weight", h, queries)
            found[f"{here}.mlp.linear_fc1.weight"] = Weight(
                {f"{there}.mlp.{name}_proj.weight": (inner, h) for name in ("gate", "up")},
                lambda weight: weight.chunk(2), torch.cat)
            found[f"{here}.mlp.linear_fc2.weight"] = same(f"{there}.mlp.down_proj.weight", h, inner)
        return found

    def canonical(self, name):
        return None if name.endswith("rotary_emb.inv_freq") else name


class Qwen3(Llama):
    """Qwen3 without experts: a Llama that normalizes each head's queries and keys."""

    model_type, architecture = "qwen3", "Qwen3ForCausalLM"
    fixed: ClassVar = {"hidden_act": ("silu",), "attention_bias": (False,),
                       "use_sliding_window": (False,),
                       "rope_scaling": (None, {"rope_type": "default"})}
    usual: ClassVar = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "head_dim": 128,
                       "max_position_embeddings": 32768}

    def derive(self, settings, path):
        return super().derive(settings, path) | {"qk_layernorm": True}

    def weights(self, flags, rows):
        found = super().weights(flags, rows)
        for number in range(flags["num_layers"]):
            for name in ("q", "k"):
                found[f"decoder.layers.{number}.self_attention.{name}_layernorm.weight"] = same(
                    f"model.layers.{number}.self_attn.{name}_norm.weight", flags["kv_channels"])
        return found


FAMILIES: dict[str, Family] = {family.model_type: family for family in (Gpt2(), Llama(), Qwen3())}


def family_of(args: Mapping[str, Any]) -> Family:
    """Return the family of a checkpoint's arguments: only GPT-2's positions are not rotary."""
    if args.get("position_embedding_type") != "rope":
        return FAMILIES["gpt2"]
    return FAMILIES["qwen3" if args.get("qk_layernorm") else "llama"]


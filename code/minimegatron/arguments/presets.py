"""--preset: the flags of known models, by name.

A preset stands for its flags at the beginning of the command line, so each of them can be given
again with another value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from minimegatron.arguments.flag import NOTHING, flag
from minimegatron.errors import UserError


@dataclass(frozen=True)
class Preset:
    """A known model.

    Attributes:
        flags: its shape, and its dropout.
        vocabulary: number of its tokens, without padding; --estimate uses it.
        parameters: number of its parameters, without padding.
        source: where its shape is published.
    """

    flags: str
    vocabulary: int
    parameters: int
    source: str


def _gpt2(layers: int, hidden: int, heads: int, parameters: int) -> Preset:
    return Preset(f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} "
                  "--seq-length 1024 --max-position-embeddings 1024", 50257, parameters,
                  "Radford et al. 2019, table 2; heads: the released hparams.json")


def _llama3(layers: int, hidden: int, heads: int, ffn: int, parameters: int) -> Preset:
    return Preset(f"--num-layers {layers} --hidden-size {hidden} --num-attention-heads {heads} "
                  f"--ffn-hidden-size {ffn} --group-query-attention --num-query-groups 8 --swiglu "
                  "--normalization RMSNorm --position-embedding-type rope --rotary-base 500000 "
                  "--disable-bias-linear --untie-embeddings-and-output-weights --seq-length 8192 "
                  "--max-position-embeddings 8192 --attention-dropout 0 --hidden-dropout 0",
                  128256, parameters, "Llama Team 2024, table 3; counts: the released weights")


PRESETS = {
    "gpt2-small": _gpt2(12, 768, 12, 124_439_808),
    "gpt2-medium": _gpt2(24, 1024, 16, 354_823_168),
    "gpt2-large": _gpt2(36, 1280, 20, 774_030_080),
    "gpt2-xl": _gpt2(48, 1600, 25, 1_557_611_200),
    "llama3-8b": _llama3(32, 4096, 32, 14336, 8_030_261_248),
    "llama3-70b": _llama3(80, 8192, 64, 28672, 70_553_706_496),
    "llama3-405b": _llama3(126, 16384, 128, 53248, 405_853_388_800),
    "qwen3-8b": Preset(
        _llama3(36, 4096, 32, 12288, 0).flags.replace("8192", "32768").replace(
            "500000", "1000000 --kv-channels 128 --qk-layernorm --layernorm-epsilon 1e-6"),
        151936, 8_190_735_360, "the config.json of Qwen3-8B-Base"),
}


@dataclass(frozen=True)
class Known:
    """A known model, whose flags stand before all others."""

    preset: str | None = flag(
        None, "the shape of a known model, which other flags override", affects=NOTHING,
        choices=tuple(PRESETS))


def expand(argv: Sequence[str]) -> list[str]:
    """Return a command line with the flags of its preset, if it has one, before its own.

    Raises UserError for two presets.
    """
    names = [word.partition("=")[2] for word in argv if word.startswith("--preset=")]
    names += [value for word, value in pairwise(argv) if word == "--preset"]
    if len(names) > 1:
        raise UserError(f"--preset is given {len(names)} times ({', '.join(names)}); nearest: "
                        f"--preset {names[0]}")
    if not names or names[0] not in PRESETS:  # the parser refuses other names
        return list(argv)
    preset = PRESETS[names[0]]
    vocabulary = ["--vocab-size", str(preset.vocabulary)] if "--estimate" in argv else []
    return [*preset.flags.split(), *vocabulary, *argv]

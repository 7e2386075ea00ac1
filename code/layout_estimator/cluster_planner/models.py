"""Models by name, as flags of the trainer."""

from __future__ import annotations

from labcore.errors import LabError

# (layers, hidden size, heads, sequence, vocabulary). GPT-2: Radford et al. 2019, table 2; its XL
# model has 25 heads, and here 16, so that 2 and 4 tensor-parallel ranks can share them. The others:
# Narayanan et al. 2021, table 1.
SHAPES = {
    "gpt2-small": (12, 768, 12, 1024, 50257),
    "gpt2-medium": (24, 1024, 16, 1024, 50257),
    "gpt2-large": (36, 1280, 20, 1024, 50257),
    "gpt2-xl": (48, 1600, 16, 1024, 50257),
    "gpt-1.7b": (24, 2304, 24, 2048, 51200),
    "gpt-3.6b": (30, 3072, 32, 2048, 51200),
    "gpt-7.5b": (36, 4096, 32, 2048, 51200),
    "gpt-18.4b": (40, 6144, 48, 2048, 51200),
    "gpt-39.1b": (48, 8192, 64, 2048, 51200),
}
FLAGS = ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--vocab-size")


def model_flags(name: str) -> list[str]:
    """Return the trainer's flags of a model. Raises LabError if no model has this name."""
    from virtualgpu.core.cards import nearest

    if name not in SHAPES:
        near = " or ".join(nearest(name, SHAPES))
        raise LabError(f"--model {name}: no such model; nearest: {near}. All: {', '.join(SHAPES)}; "
                       "or describe it with --flags")
    shape = SHAPES[name]
    words = [word for flag, value in zip(FLAGS, shape, strict=True) for word in (flag, str(value))]
    return [*words, "--max-position-embeddings", str(shape[3])]

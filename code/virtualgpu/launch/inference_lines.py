"""The lines of the report about a program that runs inference."""

from __future__ import annotations

from collections.abc import Iterator

from virtualgpu.core import accuracy
from virtualgpu.core.memory import amount
from virtualgpu.export.inference import LEAST_TOKENS

NAMES = {"host": "the host, while the GPU waits for launches", "memory_bandwidth":
         "memory bandwidth", "compute": "compute", "communication": "communication",
         "short_kernels": "kernels too short to fill the GPU"}
LEAST = 0.05  # smallest share that is listed


def inference(figures: dict, card: str) -> Iterator[str]:
    """Yield the lines about generations, or about forward passes that generate nothing.

    Args:
        figures: the figures of inference (export/inference.py).
        card: the GPU model.
    """
    yield from (generation if figures["kind"] == "generation" else forward_passes)(figures)
    yield f"bound by       {bounds(figures)}"
    if figures["kind"] == "generation":
        yield f"KV cache       {kv_cache(figures['kv_cache'])}"
        found = accuracy.DECODING.get(card)
        yield ("expected error " + (
            f"{found} of the time per token in eager mode, on published runs on {card}" if found
            else f"unknown: no published time per token on {card} was compared"))


def generation(figures: dict) -> Iterator[str]:
    many = f"the typical one of {figures['count']} generations" if figures["count"] > 1 else (
        "one generation")
    yield (f"inference      {count(figures['output_tokens'], 'output token')} after a prompt of "
           f"{count(figures['prompt_tokens'], 'token')}, {sequences(figures['batch'])}, in "
           f"{ms(figures['seconds'])}: {many}, found by calls of {figures['model']}")
    yield f"tokens/s       {figures['tokens_per_second']:,.1f} on this rank"
    yield f"first token    {ms(figures['first_token_seconds'])} (prefill)"
    yield (f"per token      {ms(figures['token_seconds'])} (decode)" + spread(
        figures["shortest_token_seconds"], figures["longest_token_seconds"]))


def forward_passes(figures: dict) -> Iterator[str]:
    length = f" of {count(figures['length'], 'token')}" if figures["length"] else ""
    of = f"of {figures['model']}, {sequences(figures['batch'])}{length}"
    if figures["count"] == 1:
        yield f"inference      {ms(figures['seconds'])} for the only forward pass {of}"
    else:
        yield (f"inference      {ms(figures['seconds'])} per forward pass {of}; the median of "
               f"{figures['count'] - 1} calls, except the first"
               + spread(figures["shortest_seconds"], figures["longest_seconds"]))
    tokens = figures["tokens_per_second"]
    yield (f"throughput     {figures['samples_per_second']:,.1f} samples/s"
           + (f", {tokens:,.0f} tokens/s" if tokens else "") + " on this rank")


def bounds(figures: dict) -> str:
    """Return what bounds the passes, the largest share first."""
    shares = sorted(figures["shares"].items(), key=lambda item: -item[1])
    return ", ".join(f"{NAMES[name]} ({share:.0%})" for name, share in shares if share >= LEAST)


def kv_cache(cache: dict | None) -> str:
    if cache is None:
        return "none: every pass computes all tokens again"
    if cache["preallocated"]:
        return f"{amount(cache['bytes'])}, preallocated"
    if cache["bytes"] is None:
        return f"not measured: that takes {LEAST_TOKENS} output tokens"
    if not cache["bytes"]:
        return "not found: nothing that the passes leave behind grows with the tokens"
    return (f"{amount(cache['bytes'])} after {count(cache['context_tokens'], 'token')}; "
            f"{amount(round(cache['bytes_per_token']))} per token of all sequences")


def spread(shortest: float, longest: float) -> str:
    """Return the range of times, unless they are equal."""
    return "" if ms(shortest) == ms(longest) else f", {ms(shortest)} to {ms(longest)}"


def sequences(batch: int) -> str:
    return f"batch size {batch}"


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.3f} ms"

"""How long each layer of the GPT takes, and its two ends: what splitting a pipeline rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Timeline


def virtual(flags: str) -> list[float]:
    """Milliseconds of a micro-batch's forward and backward pass, modeled: of the embedding, of
    every layer, of the head with the loss. flags: as of `pretrain_gpt.py --estimate`, without a
    layout. Raises LabError with the trainer's words for flags that it does not take.
    """
    from layout_estimator.requests import estimate, read_flags

    # Three stages, of which the outer ones have no layer: all layers are alike.
    alone = ["--pipeline-model-parallel-size", "3", "--world-size", "3", "--balance", "0-1-0"]
    layers = read_flags(flags.split()).num_layers
    found = estimate([*flags.split(), "--num-layers", "1", *alone]).estimate
    first, layer, last = (1000 * (forward + backward) for forward, backward
                          in zip(found.forward, found.backward, strict=True))
    return [first, *[layer] * layers, last]


def measured(timeline: Timeline, balance: str) -> list[float]:
    """Milliseconds of a micro-batch's forward and backward pass, measured: of what every stage of a
    recorded run had, divided by its layers. balance: the run's, such as 0-2-2-0: the outer stages
    have only the embedding and the head there.

    Of each action the quickest counts: what takes longer was disturbed. Raises LabError where
    the run has other stages.
    """
    layers = [int(number) for number in balance.split("-")]
    if len(layers) != len(timeline.spans):
        raise LabError(f"balance {balance} is for {len(layers)} stages, but the run has "
                       f"{len(timeline.spans)}")
    found: list[float] = []
    for count, spans in zip(layers, timeline.spans.values(), strict=True):
        quickest = sum(min(span.end - span.start for span in spans if span.kind == kind)
                       for kind in {span.kind for span in spans})
        found += [quickest / max(count, 1)] * max(count, 1)
    return found


def table(times: Sequence[float]) -> None:
    """Print them, with bars."""
    names = ["embedding", *(f"layer {number}" for number in range(len(times) - 2)), "head, loss"]
    for name, time in zip(names, times, strict=True):
        print(f"{name:12}{time:9.2f} ms  {'█' * round(30 * time / max(times))}")

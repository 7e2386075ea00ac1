"""Time of the embedding, each layer, and the head: the basis for partitioning a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labcore.errors import LabError

if TYPE_CHECKING:
    from pipeline_schedules import Timeline


def virtual(flags: str) -> list[float]:
    """Return the modeled time of a micro-batch's forward and backward pass, in milliseconds.

    Args:
        flags: flags of `pretrain_gpt.py --estimate`, without a layout.

    Returns:
        The times of the embedding, of each layer, and of the head with the loss.

    Raises:
        LabError: the trainer does not accept the flags.
    """
    from layout_estimator.requests import estimate, read_flags

    # Three stages, of which only the middle one has a layer; all layers take the same time.
    stages = ["--pipeline-model-parallel-size", "3", "--world-size", "3", "--balance", "0-1-0"]
    layers = read_flags(flags.split()).num_layers
    by_stage = estimate([*flags.split(), "--num-layers", "1", *stages]).estimate
    first, layer, last = (1000 * (forward + backward) for forward, backward
                          in zip(by_stage.forward, by_stage.backward, strict=True))
    return [first, *[layer] * layers, last]


def measured(timeline: Timeline, balance: str) -> list[float]:
    """Return the measured time of a micro-batch's forward and backward pass, in milliseconds.

    A stage's time is divided by its layers. The fastest action of each kind counts: slower ones
    were disturbed.

    Args:
        timeline: a recorded run.
        balance: the run's layers per stage, such as 0-2-2-0, where the outer stages have only the
            embedding and the head.

    Returns:
        One time per layer; a stage without layers counts as one.

    Raises:
        LabError: the balance is for a different number of stages than the run has.
    """
    layers = [int(number) for number in balance.split("-")]
    if len(layers) != len(timeline.spans):
        raise LabError(f"balance {balance} is for {len(layers)} stages, but the run has "
                       f"{len(timeline.spans)}")
    times: list[float] = []
    for count, spans in zip(layers, timeline.spans.values(), strict=True):
        fastest = sum(min(span.end - span.start for span in spans if span.kind == kind)
                      for kind in {span.kind for span in spans})
        times += [fastest / max(count, 1)] * max(count, 1)
    return times


def table(times: Sequence[float], flags: str | None = None) -> None:
    """Print the times with bars.

    Args:
        times: of the embedding, of each layer, and of the head, in milliseconds.
        flags: those that `virtual` modeled, whose software stack and expected error are printed;
            None if the times were measured.
    """
    if flags is not None:
        from layout_estimator.planner import make_estimator
        from layout_estimator.requests import read_flags
        from virtualgpu.core import stacks

        card = make_estimator(read_flags([*flags.split(), "--world-size", "1"])).card
        print(f"virtual {card.name}, modeled; software stack {stacks.describe(card)}")
    names = ["embedding", *(f"layer {number}" for number in range(len(times) - 2)), "head, loss"]
    for name, time in zip(names, times, strict=True):
        print(f"{name:12}{time:9.2f} ms  {'█' * round(30 * time / max(times))}")

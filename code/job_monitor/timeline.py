"""The timeline of a step on all ranks, read from the trace that --timeline writes.

A rank's timers cover its passes, the collectives at the end of the step, and the optimizer. A timer
of communication begins when its own rank is ready. Until the sending stage has computed the tensor,
or until all ranks of the collective are there, the rank counts as idle, and as communicating from
then on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FILE = "timeline.json"  # in the folder of --timeline
FORWARD, BACKWARD, COMMUNICATION, OPTIMIZER, DATA, IDLE = KINDS = (
    "forward", "backward", "communication", "optimizer", "data", "idle")
OF_TIMER = {"forward-compute": FORWARD, "backward-compute": BACKWARD, "optimizer": OPTIMIZER,
            "batch-generator": DATA}
EMBEDDING, GRADIENTS = "backward-embedding-all-reduce", "backward-params-all-reduce"
RECEIVES = ("forward-recv", "backward-recv")
PREVIOUS = {"F": -1, "B": 1}  # from which virtual stage a pass receives its input
Action = tuple[str, int, int]  # kind, micro-batch, chunk
Place = tuple[int, int, int, int]  # rank, stage, data-parallel rank, tensor-parallel rank


class RankSpan(NamedTuple):
    """A rank's work, or its idle time, between two moments.

    Attributes:
        kind: one of KINDS.
        start: milliseconds from the start of the step.
        end: milliseconds from the start of the step.
        text: the pass, such as B3 or F0.1, or the name of the timer.
    """

    kind: str
    start: float
    end: float
    text: str


class Lane(NamedTuple):
    """One rank.

    Attributes:
        rank: its number.
        stage: its pipeline stage.
        replica: its data-parallel rank.
        tensor: its tensor-parallel rank.
        spans: what it does, by start; in between, it is idle.
    """

    rank: int
    stage: int
    replica: int
    tensor: int
    spans: tuple[RankSpan, ...]

    def shares(self, milliseconds: float) -> dict[str, float]:
        """Return the share of the step by kind; the shares add up to 1.

        Args:
            milliseconds: the length of the step.
        """
        totals = dict.fromkeys(KINDS, 0.0)
        for span in self.spans:
            totals[span.kind] += (span.end - span.start) / milliseconds
        totals[IDLE] = max(0.0, 1 - sum(totals[kind] for kind in KINDS if kind != IDLE))
        return totals


class _Timer(NamedTuple):
    """One run of a timer, in milliseconds."""

    start: float
    end: float
    name: str
    text: str
    action: Action | None


def read(path: Path) -> list[Lane]:
    """Return the lanes of a trace, by rank.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a trace that --timeline wrote.
    """
    try:
        return lanes(json.loads(path.read_text())["traceEvents"])
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a trace of --timeline: {error!r}") from error


def lanes(events: Sequence[Mapping]) -> list[Lane]:
    """Return the lanes of a trace's events; read() describes the errors."""
    timers: dict[Place, list[_Timer]] = {}
    for event in events:
        if event["ph"] != "X":
            continue
        args, start, length = event["args"], float(event["ts"]) / 1e3, float(event["dur"]) / 1e3
        if not (math.isfinite(start) and math.isfinite(length) and length >= 0):
            raise ValueError(f"event {event['name']!r} has no time")
        place = tuple(int(number) for number in (event["pid"], args["pp"], args["dp"], args["tp"]))
        kind, number, chunk = args.get("action") or (None, None, None)
        action = None if kind is None else (str(kind), int(number), int(chunk))
        timers.setdefault(place, []).append(
            _Timer(start, start + length, str(event["cat"]), str(event["name"]), action))
    if not timers:
        raise ValueError("the trace has no spans")
    ready = _Ready(timers)
    return [Lane(*place, _spans(sorted(row), place, ready))
            for place, row in sorted(timers.items())]


class _Ready:
    """When communication could begin: its tensor is computed, or all of its ranks are there."""

    def __init__(self, timers: Mapping[Place, Sequence[_Timer]]) -> None:
        self.last = max(stage for _, stage, _, _ in timers)
        self.computed: dict[tuple, float] = {}
        self.joined: dict[tuple, float] = {}
        for place, row in timers.items():
            for one in row:
                if one.action is not None:
                    self.computed[(*place[1:], one.action)] = one.end
                group = self._group(one.name, place)
                self.joined[group] = max(one.start, self.joined.get(group, one.start))

    def received(self, place: Place, action: Action | None) -> float:
        """Return when the input of a pass was computed, or 0 if it is not known."""
        if action is None or action[0] not in PREVIOUS:
            return 0.0
        _, stage, replica, tensor = place
        kind, number, chunk = action
        other, at = divmod(chunk * (self.last + 1) + stage + PREVIOUS[kind], self.last + 1)
        return self.computed.get((at, replica, tensor, (kind, number, other)), 0.0)

    def collective(self, name: str, place: Place) -> float:
        """Return when the last rank of a collective was there."""
        return self.joined[self._group(name, place)]

    def _group(self, name: str, place: Place) -> tuple:
        """Return what the ranks of a rank's collective have in common."""
        rank, stage, replica, tensor = place
        if name == GRADIENTS:
            return name, stage, tensor
        return (name, replica, tensor) if stage in (0, self.last) else (name, rank)


def _spans(timers: Sequence[_Timer], place: Place, ready: _Ready) -> tuple[RankSpan, ...]:
    """Return a rank's spans. Timers that run inside of other timers are left out.

    Args:
        timers: of the rank, by start.
        place: its rank, stage, data-parallel rank, and tensor-parallel rank.
        ready: when communication could begin.
    """
    spans = []
    for position, one in enumerate(timers):
        if one.name in OF_TIMER:
            spans.append(RankSpan(OF_TIMER[one.name], one.start, one.end, one.text))
            continue
        if one.name in RECEIVES:
            action = next((after.action for after in timers[position + 1:] if after.action), None)
            start = ready.received(place, action)
        elif one.name in (EMBEDDING, GRADIENTS):
            start = ready.collective(one.name, place)
        else:
            continue
        start = min(max(one.start, start), one.end)
        spans += [RankSpan(IDLE, one.start, start, "waits for other ranks"),
                  RankSpan(COMMUNICATION, start, one.end, one.name)]
    return tuple(span for span in spans if span.end > span.start)

"""Pipeline schedules: the shortest modeled step under a memory cap per stage."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Any

from labkit.check.pipelines import parse_answer, validity_fault
from labkit.contest.declaration import CaseGroup, Contest, Disqualified, Ghost, Given, Scored
from pipeline_schedules import (
    BUILT_IN,
    V_SHAPED,
    Action,
    Durations,
    Schedule,
    ScheduleError,
    peak_live,
    simulate,
    to_text,
)
from pipeline_schedules.actions import count_chunks

RULES = """\
schedule(case) returns a pipeline schedule: one list of actions per stage, such as "F0 F1 B0 B1"
(docs/schedules.md). The case is a dictionary:

  stages, micro_batches      the numbers of each
  chunks                     the numbers of chunks per stage that you may use, such as [1, 2]
  forward, backward, weight  ms per micro-batch, one number per stage: F, B, and W. A schedule
                             without W runs both halves of the backward pass in B
  link                       ms from one stage to another; transfers overlap with computation
  activation                 MiB that each stage keeps of one micro-batch, from F to B (or to W)
  memory                     MiB that each stage has for activations: the cap

Chunk c of stage s is part c * stages + s of the model. A dictionary {"placement": "v", "stages":
the list} places chunks in a V instead: chunk 1 of stage s is part 2 * stages - 1 - s.

An action of one of v chunks takes 1/v of the time and keeps 1/v of the memory. The score is the
ideal time divided by the schedule's, where ideal is the busiest stage's work after the shortest
possible pipeline fill. A schedule that cannot run, leaves out or repeats work, or exceeds the cap
on any stage is disqualified."""

HINTS = {
    "no schedule": 'Return a list with one entry per stage, each a string such as "F0 F1 B0 B1".',
    "wrong stages": 'Return one entry for each of case["stages"].',
    "incomplete": "Run F and B (and W, where you split the backward pass) of every micro-batch on "
                  "every chunk exactly once.",
    "wrong order": "A stage runs an action only after those that it needs: B after its F, and W "
                   "after its B.",
    "deadlock": "Draw who waits for whom: neighbors must agree on the order of micro-batches.",
    "memory": "Run a backward pass earlier, or start fewer micro-batches before the first one.",
    "chunks": 'Use one of the numbers in case["chunks"], and count chunks from 0.',
}
NEAR = 1e-9  # relative: chunks take fractions of a MiB


def score(case: Given, answer: Any) -> Scored:
    """Score a schedule by its modeled time. Raises Disqualified."""
    schedule = _read(case, answer)
    _require_memory(case, schedule)
    clock = Durations(case["forward"], case["backward"], case["weight"], case["link"])
    total, best = float(simulate(schedule, clock).total), ideal(case)
    return Scored(best / total, f"{total:,.1f} ms, ideal {best:,.1f} ms")


def ideal(case: Given) -> float:
    """Return a time, in ms, that no schedule of this case beats.

    Before stage s can start, the first micro-batch must pass through the stages before it, one
    chunk of each, and over the links. Then the stage needs the time of all its own work.
    """
    first = [time / max(case["chunks"]) + case["link"] for time in case["forward"]]
    fill = [0.0, *accumulate(first)]
    work = [case["micro_batches"] * sum(times)
            for times in zip(case["forward"], case["backward"], case["weight"], strict=True)]
    return max(before + own for before, own in zip(fill, work, strict=False))


def _read(case: Given, answer: Any) -> Schedule:
    sizes = case["stages"], case["micro_batches"]
    try:
        schedule = parse_answer(answer, (*sizes, max(case["chunks"])))
    except ScheduleError as error:
        raise Disqualified("no schedule", str(error), HINTS["no schedule"]) from error
    chunks = count_chunks(schedule)
    if chunks not in case["chunks"]:
        raise Disqualified("wrong chunks", f"it has {chunks} chunks per stage; allowed: "
                           + ", ".join(map(str, case["chunks"])), HINTS["chunks"])
    if fault := validity_fault(schedule, (*sizes, chunks)):
        raise Disqualified(fault.kind, fault.text, HINTS[fault.kind])
    return schedule


def _require_memory(case: Given, schedule: Schedule) -> None:
    chunks, over = count_chunks(schedule), []
    for stage, (live, size, cap) in enumerate(zip(peak_live(schedule), case["activation"],
                                                  case["memory"], strict=True)):
        kept = live * size / chunks
        if kept > cap * (1 + NEAR):
            over.append((kept - cap, f"stage {stage} keeps {live} activations of "
                         f"{size / chunks:,.4g} MiB, {kept:,.4g} MiB in total: {kept - cap:,.4g} "
                         f"MiB over its cap of {cap:,.4g} MiB"))
    if over:
        others = "1 other stage is" if len(over) == 2 else f"{len(over) - 1} other stages are"
        more = f" (and {others} over the limit)" if len(over) > 1 else ""
        worst = max(over, key=lambda one: one[0])
        raise Disqualified("over the memory cap", worst[1] + more, HINTS["memory"])


def _case(random: Random, *, uneven: bool = False, link: tuple[float, float] = (0, 0),
          chunks: int = 1, room: tuple[int, int] = (0, 0), profile: bool = False,
          whole: bool = False) -> dict[str, Any]:
    """Draw a case.

    Args:
        random: the random number generator.
        uneven: whether stages differ.
        link: minimum and maximum link time, as a fraction of a forward pass.
        chunks: maximum number of chunks per stage; a power of two.
        room: minimum and maximum number of activations beyond those of 1F1B's first stage.
        profile: whether each stage has room for exactly 1F1B's number of activations.
        whole: whether the number of micro-batches is divisible by the number of stages.
    """
    stages = random.randint(3, 8)
    micro_batches = (stages * random.randint(2, 4) if whole
                     else random.randint(stages + 1, 4 * stages))
    base, ratio = random.randint(8, 30), random.uniform(0.7, 1.4)

    def times(factor: float) -> list[int]:
        return [max(1, round(base * factor * stretch)) for stretch in stretches]

    stretches = [random.uniform(0.7, 1.3) if uneven else 1.0 for _ in range(stages)]
    activation = [random.randint(60, 400)] * stages
    if uneven:
        activation = [round(activation[0] * random.uniform(0.8, 1.25)) for _ in range(stages)]
    extra = random.randint(*room)
    live = [min(micro_batches, stages - (stage if profile else 0) + extra)
            for stage in range(stages)]
    return {"stages": stages, "micro_batches": micro_batches,
            "chunks": [1 << power for power in range(chunks.bit_length())],
            "forward": times(1), "backward": times(ratio),
            "weight": times(random.uniform(0.6, 1.0)),
            "link": round(base * random.uniform(*link), 1), "activation": activation,
            "memory": [count * size for count, size in zip(live, activation, strict=True)]}


def _even(random: Random) -> dict[str, Any]:
    return _case(random)


def _uneven(random: Random) -> dict[str, Any]:
    return _case(random, uneven=True, link=(0, 0.1), room=(0, 2))


def _network(random: Random) -> dict[str, Any]:
    return _case(random, link=(0.2, 0.6), chunks=2, room=(4, 24), whole=True)


def _tight(random: Random) -> dict[str, Any]:
    return _case(random, profile=True)


def _open(draw: Any, name: str) -> list[dict[str, Any]]:
    """Return the two open cases of a group, which are the same everywhere."""
    random = Random(f"open cases: {name}")
    return [draw(random), draw(random)]


def _group(name: str, title: str, draw: Any) -> CaseGroup:
    return CaseGroup(name, title, _open(draw, name), draw, secret=3)


def _built_in(name: str) -> Any:
    """Return a built-in schedule as a function of the case; interleaving uses all chunks that the
    case allows, and a V-shaped schedule gives way to 1F1B where the case does not allow two."""
    def answer(case: dict[str, Any]) -> list[str] | dict[str, Any]:
        sizes = [case["stages"], case["micro_batches"]]
        if name in V_SHAPED:
            if 2 not in case["chunks"]:
                return to_text(BUILT_IN["1f1b"](*sizes))
            return {"placement": "v", "stages": to_text(V_SHAPED[name](*sizes))}
        if name == "interleaved":
            sizes.append(max(case["chunks"]))
        return to_text(BUILT_IN[name](*sizes))

    return answer


def one_at_a_time(case: dict[str, Any]) -> list[str]:
    """Run every micro-batch forward and backward before the next: no pipelining at all."""
    return to_text([[Action(kind, k) for k in range(case["micro_batches"]) for kind in "FB"]
                    for _ in range(case["stages"])])


CONTEST = Contest(
    name="pipelines", title="Pipeline schedules under a memory cap", rules=RULES,
    file="pipelines.py", entry="schedule", seconds=5,
    groups=(
        _group("even", "equal stages, with room for as many activations as there are stages",
               _even),
        _group("uneven", "stages of different speed and size", _uneven),
        _group("network", "slow links, two chunks per stage, and more room", _network),
        _group("tight", "room for exactly the activations that 1F1B keeps on each stage", _tight)),
    score=score,
    ghosts=(
        Ghost("GPipe", "Huang et al. 2019", _built_in("gpipe")),
        Ghost("1F1B", "Narayanan et al. 2021", _built_in("1f1b")),
        Ghost("interleaved", "Narayanan et al. 2021", _built_in("interleaved")),
        Ghost("ZB-H1", "Qi et al. 2023", _built_in("zb-h1")),
        Ghost("ZB-H2", "Qi et al. 2023", _built_in("zb-h2")),
        Ghost("ZBV", "Qi et al. 2024", _built_in("zbv")),
        Ghost("DualPipeV", "DeepSeek-AI 2024, Qi et al. 2025", _built_in("dualpipev")),
        Ghost("serial", "one micro-batch at a time", one_at_a_time)))

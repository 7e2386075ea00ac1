"""Layouts drawn at random: grid, split, batch, what is recomputed, and the schedule."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

from pipeline_schedules import Action, Schedule, check, to_text
from pipeline_schedules.actions import dependencies

RECOMPUTE = ("", "--recompute-activations ",
             "--recompute-granularity full --recompute-method uniform ",
             "--recompute-granularity full --recompute-method block ")


class Draw(NamedTuple):
    layout: str  # flags; they name the schedule's file
    model: str  # flags that one process trains with too
    file: str
    schedule: Schedule


def draw(seed: int) -> Draw:
    """On 4 ranks, of which at least two hold different parts of the model."""
    random = Random(seed)
    tp, pp = random.choice([(1, 2), (1, 4), (2, 1), (2, 2)])
    chunks = random.choice((1, 2)) if pp > 1 else 1
    layout = (f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} "
              + random.choice(RECOMPUTE))
    if tp > 1 and random.random() < 0.5:
        layout += "--sequence-parallel "
    if chunks > 1:
        size = random.randint(1, 4 // pp // tp)
        layers = pp * chunks * size
        layout += f"--num-layers-per-virtual-pipeline-stage {size} "
    else:
        inner = [random.randint(1, 2) for _ in range(pp - 2)]
        ends = random.choice([(0, 2), (2, 0), (1, 2), (3, 1)]) if pp > 1 else (2,)
        split = [ends[0], *inner, *ends[1:]]
        layers = sum(split)
        layout += f"--balance {'-'.join(map(str, split))} "
    micro_batches, size = random.randint(1, 5), random.randint(1, 3)
    schedule = random_schedule(random, pp, micro_batches, chunks)
    check(schedule, stages=pp, micro_batches=micro_batches, chunks=chunks)
    file = f"draw{seed}.json"
    return Draw(f"{layout}--schedule {file}",
                f"--num-layers {layers} --micro-batch-size {size} "
                f"--global-batch-size {micro_batches * size * 4 // (tp * pp)}", file, schedule)


def random_schedule(random: Random, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Any order that the dependencies allow can come out, with split backwards or without."""
    waiting = [(stage, Action(kind, k, chunk)) for kind in random.choice(("FB", "FBW"))
               for stage in range(stages) for k in range(micro_batches) for chunk in range(chunks)]
    done, schedule = set(), [[] for _ in range(stages)]
    while waiting:
        stage, action = place = random.choice(
            [place for place in waiting if done.issuperset(dependencies(*place, stages, chunks))])
        waiting.remove(place)
        done.add(place)
        schedule[stage].append(action)
    return schedule


def write(drawn: Draw, folder: Path) -> None:
    (folder / drawn.file).write_text(json.dumps(to_text(drawn.schedule)))

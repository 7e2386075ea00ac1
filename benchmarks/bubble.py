"""A pipeline's bubble as it was against what the simulator says of the same stage times.

python benchmarks/bubble.py [--repeats 5]

Two stages on two cores, one thread each. A step is recorded with --timeline; the medians of its
forwards, backwards and weight gradients, stage by stage, go into the simulator.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from runs import data_flags, pretrain

from minimegatron.report import timeline
from pipeline_schedules import BUILT_IN, Durations, Timeline, load, simulate

STAGES, MICRO_BATCHES, CHUNKS = 2, 4, 2
RUNS = {"gpipe": "", "1f1b": "", "zb-h1": "",
        "interleaved": "--num-layers-per-virtual-pipeline-stage 2"}
assert set(RUNS) == set(BUILT_IN), "a schedule without a measurement"
MODEL = ("--num-layers 8 --hidden-size 256 --num-attention-heads 4 --seq-length 256 "
         "--max-position-embeddings 256 --micro-batch-size 2 --train-iters 6 --eval-iters 0 "
         f"--global-batch-size {2 * MICRO_BATCHES} --lr 1e-4 --make-vocab-size-divisible-by 64 "
         f"--pipeline-model-parallel-size {STAGES} --timeline-iteration 5 ")


def record(flags: str) -> Timeline:
    """One step of the trainer, as it ran on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        pretrain(STAGES, f"{MODEL} --timeline {folder} {flags}")
        return timeline.read(Path(folder, timeline.FILE))


def durations(run: Timeline, chunks: int) -> Durations:
    """The stages' median times, of a whole stage."""
    def medians(kind: str) -> list[float]:
        times = [[span.end - span.start for span in spans if span.kind == kind]
                 for spans in run.spans.values()]
        return [chunks * statistics.median(stage) if stage else 0 for stage in times]

    return Durations(medians("F"), medians("B"), medians("W"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"{STAGES} stages, {MICRO_BATCHES} micro-batches, medians of {repeats} runs")
    with data_flags() as data:
        for name, flags in RUNS.items():
            chunks = CHUNKS if flags else 1
            pairs = []
            for _ in range(repeats):
                run = record(f"--schedule {name} {flags} {data}")
                model = simulate(load(name, STAGES, MICRO_BATCHES, chunks), durations(run, chunks))
                pairs.append((run.bubble_fraction, model.bubble_fraction))
            real, simulated = (statistics.median(side) for side in zip(*pairs, strict=True))
            off = statistics.median(one / two - 1 for one, two in pairs)
            print(f"{name:12} bubble {real:6.1%} of the time, simulated {simulated:6.1%} "
                  f"({off:+.0%})", flush=True)


if __name__ == "__main__":
    main()

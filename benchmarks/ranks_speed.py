"""Four data-parallel ranks on two cores against one process that has both.

python benchmarks/ranks_speed.py [--rounds 5] [--steps 4]

32 sequences a step, dropout 0. Runs alternate; the first step of each run does not count.
"""

from __future__ import annotations

import argparse
import re
import statistics

from plain_gpt import SHAPES
from runs import data_flags, pretrain

RANKS, SEQUENCES = 4, 32
SHAPE = SHAPES["10M"]


def seconds(ranks: int, steps: int, data: str) -> float:
    """Return the time of one step, by the trainer's own log lines."""
    # The data set has 257 tokens: padding brings the vocabulary to the shape's.
    printed = pretrain(ranks, f"{SHAPE.flags} {data} --micro-batch-size {SHAPE.batch} "
                       f"--global-batch-size {SEQUENCES} --train-iters {steps + 1} --eval-iters 0 "
                       f"--log-interval 1 --make-vocab-size-divisible-by {SHAPE.vocabulary}",
                       threads=1 if ranks > 1 else 2)
    times = re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", printed)
    return statistics.median(map(float, times[1:])) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    arguments = parser.parse_args()
    with data_flags() as data:
        pairs = [[seconds(ranks, arguments.steps, data) for ranks in (1, RANKS)]
                 for _ in range(arguments.rounds)]
    one, many = (statistics.median(side) for side in zip(*pairs, strict=True))
    tokens = SEQUENCES * SHAPE.length
    ratio = statistics.median(one / many for one, many in pairs)
    print(f"one process, 2 threads {tokens / one:6.0f} tokens/s; {RANKS} ranks "
          f"{tokens / many:6.0f} tokens/s: {ratio:.3f}x; medians of {arguments.rounds}")


if __name__ == "__main__":
    main()

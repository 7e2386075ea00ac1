"""Building the index maps of ten million documents, against a loop over samples in plain Python.

python benchmarks/index_maps.py [--documents 10000000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from minimegatron.data import index_maps
from minimegatron.data.index_maps import build_doc_idx, build_shuffle_idx

SEQ_LENGTH = 1024
LOOP_SHARE = 100  # the loop gets one document in so many, and is counted so many times


def plain_loop(sizes: np.ndarray, samples: int) -> list[tuple[int, int]]:
    """Return the start of each sample: (document, offset)."""
    starts, document, offset = [(0, 0)], 0, 0
    for _ in range(samples):
        left = SEQ_LENGTH
        while left >= sizes[document] - offset:
            left -= sizes[document] - offset
            document, offset = document + 1, 0
        offset += left
        starts.append((document, offset))
    return starts


def vectorised(sizes: np.ndarray, plan: index_maps.Plan) -> None:
    random = np.random.RandomState(0)
    doc_idx = build_doc_idx(np.arange(len(sizes), dtype=np.int32), plan, random)
    index_maps.build_sample_idx(sizes, doc_idx, plan)
    build_shuffle_idx(plan, random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    sizes = np.random.RandomState(0).randint(1, 100, arguments.documents).astype(np.int32)
    tokens = int(sizes.sum())
    plan = index_maps.plan_epochs(tokens, SEQ_LENGTH, (tokens - 1) // SEQ_LENGTH)
    few = sizes[:arguments.documents // LOOP_SHARE]
    ours, loops = [], []
    for _ in range(arguments.repeats):
        start = time.perf_counter()
        vectorised(sizes, plan)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        plain_loop(few, int(few.sum() - 1) // SEQ_LENGTH)
        loops.append((time.perf_counter() - start) * LOOP_SHARE)
    ratio = statistics.median(loop / our for loop, our in zip(loops, ours, strict=True))
    print(f"index maps of {arguments.documents:,} documents, {tokens:,} tokens: "
          f"median {statistics.median(ours):.2f} s; a plain loop takes {ratio:.0f} times as long")


if __name__ == "__main__":
    main()

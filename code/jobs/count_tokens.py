"""Count the tokens of a text on all ranks, and write the most frequent ones to a file.

    torchrun --standalone --nproc_per_node 4 code/count_tokens.py --data FILE --result FILE

Each rank counts its own part of the text, and an all-reduce adds the counts. Rank 0 writes the
result, while the other ranks wait for it.
"""

import argparse
import json
from pathlib import Path

import numpy
import torch
import torch.distributed as dist

VOCABULARY = 4096


def count(path):
    """Return how often each token occurs in the text, as [VOCABULARY], on every rank."""
    tokens = numpy.fromfile(path, dtype=numpy.uint16)
    mine = tokens[dist.get_rank()::dist.get_world_size()]
    counts = torch.from_numpy(numpy.bincount(mine, minlength=VOCABULARY))
    dist.all_reduce(counts)
    return counts


def write(counts, path):
    """Write the ten most frequent tokens and their counts as JSON.

    Args:
        counts: how often each token occurs, as [VOCABULARY].
        path: the file; its folder must exist.
    """
    times, tokens = counts.topk(10)
    path.write_text(json.dumps(dict(zip(tokens.tolist(), times.tolist(), strict=True))) + "\n")
    print(f"counted {counts.sum():,} tokens; the most frequent ones are in {path}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    counts = count(arguments.data)
    if dist.get_rank() == 0:
        write(counts, arguments.result)
    dist.barrier()  # no rank is done before the result exists
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Count the communication between the ranks of a profiled run, for notebooks."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path

from labcore.errors import LabError

# The bytes that one of n ranks sends, for an input of `size` bytes per rank, with ring algorithms
# (Thakur et al. 2005; NCCL's ring). Both ends of a P2P transfer record it, but only one sends.
BYTES_SENT = {"all_reduce": lambda size, n: 2 * (n - 1) / n * size,
              "reduce_scatter": lambda size, n: (n - 1) / n * size,
              "all_gather": lambda size, n: (n - 1) * size,
              "send": lambda size, n: size,
              "recv": lambda size, n: 0}
TRACE_FILE = re.compile(r"gpu(\d+)\.(\d+)\.pt\.trace\.json$")  # of a rank and a time


def read(folder: Path) -> dict[int, dict[str, float]]:
    """Return the bytes that each rank sent per iteration, by rank and kind of communication.

    Args:
        folder: a run of the profiler's tab (megatron/tensorboard/JOB/run_NAME); the newest profile
            of each rank counts.

    Raises:
        LabError: there is no profile, or it has a kind of communication that is not known.
    """
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.glob("*.pt.trace.json"):
        if match := TRACE_FILE.search(path.name):
            rank, time = int(match[1]), int(match[2])
            newest[rank] = max(newest.get(rank, (0, path)), (time, path))
    if not newest:
        raise LabError(f"no profile in {folder}: was the job submitted with --profile-execution "
                       "yes, and has it ended?")
    return {rank: _read_trace(path) for rank, (_, path) in sorted(newest.items())}


def _read_trace(path: Path) -> dict[str, float]:
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    steps = sum(event.get("name", "").startswith("ProfilerStep#") for event in events)
    if not steps:
        raise LabError(f"{path.name} contains no complete iteration; a profile takes a run of at "
                       "least 4 iterations")
    total: dict[str, float] = defaultdict(float)
    for event in events:
        # Each collective has two events: one on the host, and one on the GPU's stream.
        backend, _, name = event.get("name", "").partition(":")
        if backend in ("gloo", "nccl") and event.get("cat") in ("cpu_op", "user_annotation"):
            kind = name.split()[0]
            total[kind] += _bytes_sent(kind, event["args"], trace["distributedInfo"]["world_size"])
    return {kind: size / steps for kind, size in total.items() if size}


def _bytes_sent(kind: str, args: dict, world: int) -> float:
    from virtualgpu.export.trace_events import SIZES

    # gloo does not record the group, but with at most two ranks only one group communicates.
    ranks = args.get("Group size") or (world if world <= 2 else None)
    dtype = args.get("Input type", [None])[0]
    if kind not in BYTES_SENT or ranks is None or dtype not in SIZES:
        raise LabError(f"cannot count the bytes of {kind} with dtype {dtype} among "
                       f"{ranks or 'an unknown number of'} ranks")
    return BYTES_SENT[kind](math.prod(args["Input Dims"][0]) * SIZES[dtype], ranks)

"""Count the communication between the ranks of a profiled run, for notebooks."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path

from labcore.errors import LabError

# Of a message of `size` bytes (of what the rank hands in) among n ranks: what one rank sends, in a
# ring (Thakur et al. 2005; NCCL's ring). Both ends of a message note it; only one sends.
SENT = {"all_reduce": lambda size, n: 2 * (n - 1) / n * size,
        "reduce_scatter": lambda size, n: (n - 1) / n * size,
        "all_gather": lambda size, n: (n - 1) * size,
        "send": lambda size, n: size,
        "recv": lambda size, n: 0}
WORKER = re.compile(r"gpu(\d+)\.(\d+)\.pt\.trace\.json$")


def sent(folder: Path) -> dict[int, dict[str, float]]:
    """{rank: {kind of message: bytes that this rank sent in one iteration}} of the newest profile
    in `folder`, a run of the profiler's tab (megatron/tensorboard/JOB/run_NAME).

    Raises LabError where there is no profile, or a message in it that this cannot count.
    """
    newest: dict[int, tuple[int, Path]] = {}
    for path in folder.glob("*.pt.trace.json"):
        if match := WORKER.search(path.name):
            rank, at = int(match[1]), int(match[2])
            newest[rank] = max(newest.get(rank, (0, path)), (at, path))
    if not newest:
        raise LabError(f"no profile in {folder}: was the job submitted with --profile-execution "
                       "yes, and is it over?")
    return {rank: _sent(path) for rank, (_, path) in sorted(newest.items())}


def _sent(path: Path) -> dict[str, float]:
    trace = json.loads(path.read_text())
    events = trace["traceEvents"]
    steps = sum(event.get("name", "").startswith("ProfilerStep#") for event in events)
    if not steps:
        raise LabError(f"{path.name} holds no whole iteration: were there at least 4?")
    total: dict[str, float] = defaultdict(float)
    for event in events:
        # gloo's and NCCL's are named alike; what runs on the card's streams is a second record.
        backend, _, name = event.get("name", "").partition(":")
        if backend in ("gloo", "nccl") and event.get("cat") in ("cpu_op", "user_annotation"):
            kind = name.split()[0]
            total[kind] += _bytes(kind, event["args"], trace["distributedInfo"]["world_size"])
    return {kind: size / steps for kind, size in total.items() if size}


def _bytes(kind: str, about: dict, world: int) -> float:
    from virtualgpu.export.trace_events import SIZES

    # gloo does not note the group; with two ranks there is but one in which anything is sent.
    ranks = about.get("Group size") or (world if world <= 2 else None)
    known = about.get("Input type", [None])[0]
    if kind not in SENT or ranks is None or known not in SIZES:
        raise LabError(f"cannot count a {kind} of {known} among {ranks or 'unknown'} ranks")
    return SENT[kind](math.prod(about["Input Dims"][0]) * SIZES[known], ranks)

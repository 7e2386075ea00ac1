"""Random runs on clusters of several kinds of nodes: with virtual ranks, and estimated."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from layout_estimator.requests import estimate
from minimegatron.device.virtual import VirtualDevice
from pretrain_gpt import main
from tests.minimegatron.conftest import PRETRAIN
from virtualgpu.core import memory
from virtualgpu.core.segments import Pool
from virtualgpu.net.cluster_spec import parse_cluster
from warmranks import run_program

LAYERS = 8
MODEL = (f"--num-layers {LAYERS} --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
         "--max-position-embeddings 256 ")
KINDS = ("v100", "a100", "a10", "rtx3090", "t4", "l4", "h100")
SCHEDULES = ("--schedule gpipe", "--schedule 1f1b", "--schedule zb-h1", "interleaved")
OPTIONS = ("--overlap-grad-reduce", "--use-distributed-optimizer", "--timing-log-level 0",
           "--use-flash-attn --attention-dropout 0", "--fp16")
NETWORKS = ("", "--virtual-network ethernet:10gbit", "--virtual-network infiniband:2x200gbit")
RECOMPUTE = ("", "--recompute-activations",
             "--recompute-granularity full --recompute-method uniform",
             "--recompute-granularity full --recompute-method block --recompute-num-layers 1")


class Case(NamedTuple):
    """A cluster, and the flags of a run on all of its GPUs."""

    cluster: str
    flags: str


def draw(seed: int, most: int = 12) -> Case:
    """Draw a case with at most so many GPUs."""
    random = Random(seed)
    while True:
        kinds = random.sample(KINDS, random.choice((2, 2, 3)))
        sizes = [(random.choice((1, 2, 2, 4)), random.choice((1, 2))) for _ in kinds]
        ranks = sum(gpus * nodes for gpus, nodes in sizes)
        tp = random.choice([size for size in (1, 2) if all(gpus % size == 0 for gpus, _ in sizes)])
        pp = random.choice([size for size in range(1, 7) if ranks // tp % size == 0])
        if ranks <= most and tp < ranks:
            break
    cluster = ",".join(f"{kind}:{gpus}x{nodes}" for kind, (gpus, nodes)
                       in zip(kinds, sizes, strict=True))
    micro_batch = random.choice((2, 4))
    flags = [f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} "
             f"--micro-batch-size {micro_batch}", random.choice(RECOMPUTE)]
    if pp > 1:
        schedule = random.choice(SCHEDULES)
        if schedule == "interleaved" and LAYERS % (2 * pp) == 0:
            flags.append(f"--num-layers-per-virtual-pipeline-stage {LAYERS // pp // 2}")
        else:
            cuts = sorted(random.sample(range(1, LAYERS), pp - 1))
            parts = [end - start for start, end in zip([0, *cuts], [*cuts, LAYERS], strict=True)]
            flags.append(f"--balance {'-'.join(map(str, parts))}")
            flags.append("" if schedule == "interleaved" else schedule)
    if tp > 1 and random.random() < 0.5:
        flags.append("--sequence-parallel")
    flags += [option for option in OPTIONS if random.random() < 0.3]
    flags.append(random.choice(NETWORKS))
    batch = micro_batch * ranks // tp // pp * pp * random.randint(1, 3)
    return Case(cluster, " ".join(filter(None, [*flags, f"--global-batch-size {batch}"])))


def train_on(cluster: str) -> object:
    """Train as the rank of a cluster, with an allocator that splits every block, as estimates do.
    """
    rank, first = int(os.environ["RANK"]), 0
    for group in parse_cluster(cluster):
        if rank < first + group.gpus:
            break
        first += group.gpus
    node, local = divmod(rank - first, group.per_node)
    os.environ |= {"VIRTUAL_GPU": group.card.name, "LOCAL_RANK": str(local),
                   "SLURMD_NODENAME": f"{group.card.name}-{group.per_node}-{node}"}
    closing = VirtualDevice.closing

    def say_peak(device: VirtualDevice) -> list[str]:
        print(f"rank {rank} peak {device.gpu.memory.peak}", flush=True)
        return closing(device)

    with ExitStack() as stack:
        stack.enter_context(patch.object(memory, "Pool", lambda _: Pool(memory.ROUND)))
        stack.enter_context(patch.object(VirtualDevice, "closing", say_peak))
        return main()


class Errors(NamedTuple):
    """Relative errors of an estimate: of the step's time, and the largest of the ranks' peaks."""

    time: float
    memory: float


def compare(case: Case, dataset, status: Path) -> Errors:
    """Return the errors of a case's estimate.

    Args:
        case: the cluster and the flags.
        dataset: of the fixture.
        status: a folder for the ranks' files.
    """
    ranks = sum(group.gpus for group in parse_cluster(case.cluster))
    words = shlex.split(f"{MODEL} {case.flags} {dataset.flags} --lr 1e-4 --train-iters 4 "
                        "--device virtual --log-interval 100 --eval-iters 0")
    run = run_program(train_on, [PRETRAIN, *words], case.cluster, ranks=ranks, timeout=500,
                      env={**os.environ, "RANK_STATUS": str(status)})
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-3000:]
    # The log rounds to tenths of milliseconds, the ranks' own files do not.
    seconds = json.loads((status / "0.json").read_text())["milliseconds"] / 1000
    vocabulary = re.search(r"\(new size: (\d+)\)", run.stdout)[1]
    found = estimate([*shlex.split(MODEL + case.flags), "--cluster", case.cluster,
                      "--vocab-size", vocabulary])
    peaks = {int(rank): int(peak) for rank, peak in
             re.findall(r"^rank (\d+) peak (\d+)$", run.stdout, re.MULTILINE)}
    assert len(peaks) == ranks
    cards = [group.card.name for group in parse_cluster(case.cluster) for _ in range(group.gpus)]
    per_stage = ranks // found.config.pipeline_model_parallel_size
    real: dict[tuple[int, str], int] = {}
    for rank, peak in peaks.items():
        key = rank // per_stage, cards[rank]
        real[key] = max(real.get(key, 0), peak)
    mine = {(one.stage, one.card.name): peak for one, peak
            in zip(found.estimate.ranks, found.estimate.peak, strict=True)}
    assert mine.keys() == real.keys()
    return Errors(found.estimate.seconds / seconds - 1,
                  max((mine[key] / real[key] - 1 for key in mine), key=abs))

"""`--present auto`: one process per pipeline stage, if the program has a pipeline.

The program starts with one process that represents all ranks, and runs to its end if all ranks do
the same. If it creates a device mesh with a pipeline dimension, or sends from rank to rank, its
stages differ, and it restarts with one rank of each stage.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import device_mesh

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.gpu import program_line
from virtualgpu.launch import host
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.result import Rank
from virtualgpu.launch.settings import Settings
from virtualgpu.net.group import VirtualGroup

PIPELINE = re.compile(r"pp|pipe.*|stages?", re.I)  # names of mesh dimensions


@dataclass(frozen=True)
class PipelineRanks:
    """One rank of each stage, and a phrase that says how the stages were detected."""

    ranks: list[int]
    shown_by: str


class StagesDetected(BaseException):
    """Ends the first run of a program that has stages. No `except Exception` can catch it."""

    def __init__(self, stages: PipelineRanks) -> None:
        super().__init__(stages)
        self.stages = stages


def run(cluster: Cluster, settings: Settings, program: Callable[[], object]) -> list[Rank]:
    """Run a program on the fewest ranks that can represent all.

    Args:
        cluster: the job's GPUs.
        settings: the user's settings.
        program: the function that every rank runs; it starts twice if it has stages.

    Returns:
        The results of the ranks that were processes.
    """
    first = run_ranks(cluster, settings, watched(program), [0])
    stages = first[0].value
    if not isinstance(stages, PipelineRanks):
        return first
    print(f"virtualrun: --present auto: {stages.shown_by}; restarting with one process "
          f"for each of ranks {', '.join(map(str, stages.ranks))}\n"
          f"virtualrun: {host.check(len(stages.ranks))}", file=sys.stderr, flush=True)
    return run_ranks(cluster, settings, program, stages.ranks)


def watched(program: Callable[[], object]) -> Callable[[], object]:
    """Return the program, which now returns its stages as soon as they are detected."""
    def start() -> object:
        watch()
        try:
            return program()
        except StagesDetected as detected:
            return detected.stages
    return start


def watch() -> None:
    """Make this process raise StagesDetected when the program reveals its stages."""
    init = device_mesh.DeviceMesh.__init__

    def made(self: device_mesh.DeviceMesh, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        ranks = along_pipeline(self)
        if len(ranks) > 1:
            report_stages(ranks,
                          f"the program makes a device mesh with {len(ranks)} pipeline stages")

    device_mesh.DeviceMesh.__init__ = made
    for name in ("send", "recv"):
        setattr(VirtualGroup, name, sends(getattr(VirtualGroup, name)))


def along_pipeline(mesh: device_mesh.DeviceMesh) -> list[int]:
    """Return the first rank of each stage; empty if the mesh has no pipeline dimension."""
    names = mesh.mesh_dim_names or ()
    dim = next((index for index, name in enumerate(names) if PIPELINE.fullmatch(name)), None)
    if dim is None:
        return []
    return mesh.mesh.movedim(dim, 0).flatten(1)[:, 0].tolist()


def sends(function: Callable) -> Callable:
    def call(self: VirtualGroup, *args: object, **kwargs: object):
        communicates(list(self.ranks))
        return function(self, *args, **kwargs)
    return call


def communicates(ranks: list[int]) -> None:
    """Treat the ranks of a group with sends as the stages, unless the group is the whole job.

    Raises:
        StagesDetected: the stages are known.
        VirtualGpuError: nothing tells which ranks are the stages.
    """
    frame, library = sys._getframe(1), False
    while frame is not None and not library:
        library = frame.f_globals.get("__name__", "").startswith("torch.distributed.pipelining")
        frame = frame.f_back
    if library or len(ranks) < dist.get_world_size():
        report_stages(ranks, f"ranks send to each other in a group of {len(ranks)}")
    raise VirtualGpuError(
        f"--present auto: {program_line()} sends among all {len(ranks)} ranks, so the pipeline "
        "stages cannot be detected: list one rank of each, such as --present 0,1, or run all ranks "
        "as processes (omit --present)")


def report_stages(ranks: list[int], shown_by: str) -> None:
    """Raise StagesDetected, or VirtualGpuError if rank 0 is in another pipeline."""
    if 0 not in ranks:
        raise VirtualGpuError(f"--present auto: rank 0 is not in the pipeline of ranks {ranks} "
                              f"found at {program_line()}: list one rank of each stage with "
                              "--present")
    raise StagesDetected(PipelineRanks(sorted(ranks), shown_by))

"""`--present auto`: one process per pipeline stage, if the program has a pipeline.

The program starts with one process that stands for all ranks. It comes to its end if all ranks do
the same. If it makes a device mesh with a pipeline dimension, or sends from rank to rank, its
stages differ, and it starts again with one rank of each stage.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import device_mesh

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.gpu import place
from virtualgpu.launch import host
from virtualgpu.launch.cluster import Cluster
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.result import Rank
from virtualgpu.launch.settings import Settings
from virtualgpu.net.group import VirtualGroup

PIPELINE = re.compile(r"pp|pipe.*|stages?", re.I)  # names of mesh dimensions


@dataclass(frozen=True)
class Stages:
    """One rank of each stage, and what showed that there are stages."""

    ranks: list[int]
    shown_by: str


class Found(BaseException):
    """Ends the first start of a program that has stages; no `except Exception` may stop it."""

    def __init__(self, stages: Stages) -> None:
        super().__init__(stages)
        self.stages = stages


def run(cluster: Cluster, settings: Settings, program: Callable[[], object]) -> list[Rank]:
    """Run a program on as few ranks as can stand for all.

    Args:
        cluster: all GPUs.
        settings: of the user.
        program: what every rank runs; it is started twice if it has stages.

    Returns the results of the ranks that were processes.
    """
    first = run_ranks(cluster, settings, watched(program), [0])
    stages = first[0].value
    if not isinstance(stages, Stages):
        return first
    print(f"virtualrun: --present auto: {stages.shown_by}; restarting with one process "
          f"for each of ranks {', '.join(map(str, stages.ranks))}\n"
          f"virtualrun: {host.check(len(stages.ranks))}", file=sys.stderr, flush=True)
    return run_ranks(cluster, settings, program, stages.ranks)


def watched(program: Callable[[], object]) -> Callable[[], object]:
    """The program, which returns its stages as soon as they are known."""
    def start() -> object:
        watch()
        try:
            return program()
        except Found as found:
            return found.stages
    return start


def watch() -> None:
    """Raise Found in this process once the program shows its stages."""
    init = device_mesh.DeviceMesh.__init__

    def made(self: device_mesh.DeviceMesh, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        ranks = along_pipeline(self)
        if len(ranks) > 1:
            shows(ranks, f"the program makes a device mesh with {len(ranks)} pipeline stages")

    device_mesh.DeviceMesh.__init__ = made
    for name in ("send", "recv"):
        setattr(VirtualGroup, name, sends(getattr(VirtualGroup, name)))


def along_pipeline(mesh: device_mesh.DeviceMesh) -> list[int]:
    """The first rank of each stage; empty where no dimension of the mesh is a pipeline by name."""
    names = mesh.mesh_dim_names or ()
    found = next((at for at, name in enumerate(names) if PIPELINE.fullmatch(name)), None)
    if found is None:
        return []
    return mesh.mesh.movedim(found, 0).flatten(1)[:, 0].tolist()


def sends(function: Callable) -> Callable:
    def call(self: VirtualGroup, *args: object, **kwargs: object):
        communicates(list(self.ranks))
        return function(self, *args, **kwargs)
    return call


def communicates(ranks: list[int]) -> None:
    """Ranks of a group send to each other: they are the stages, unless the group is the world.

    Raises Found, or VirtualGpuError where nothing says which ranks are stages.
    """
    frame, library = sys._getframe(1), False
    while frame is not None and not library:
        library = frame.f_globals.get("__name__", "").startswith("torch.distributed.pipelining")
        frame = frame.f_back
    if library or len(ranks) < dist.get_world_size():
        shows(ranks, f"ranks send to each other in a group of {len(ranks)}")
    raise VirtualGpuError(
        f"--present auto: {place()} sends among all {len(ranks)} ranks, so the pipeline stages "
        "cannot be detected: list one rank of each, such as --present 0,1, or run all ranks as "
        "processes (omit --present)")


def shows(ranks: list[int], shown_by: str) -> None:
    """Raise Found. Raises VirtualGpuError where rank 0 is in another pipeline."""
    if 0 not in ranks:
        raise VirtualGpuError(f"--present auto: rank 0 is not in the pipeline of ranks {ranks} "
                              f"found at {place()}: list one rank of each stage with --present")
    raise Found(Stages(sorted(ranks), shown_by))

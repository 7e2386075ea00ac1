"""Inside torchrun and srun this process is one rank already; they say which."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.launch.cluster import Cluster

# Slurm's names for what torchrun tells programs.
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """In a step of several tasks, set what torchrun would, unless that is set."""
    if "RANK" in environment or int(environment.get("SLURM_NTASKS") or 1) < 2 or (
            "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment):
        return
    for name, slurm in SLURM.items():
        environment.setdefault(name, environment[slurm])


def own_rank(cluster: Cluster, environment: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank; None where nothing has started it as one.

    Raises VirtualGpuError where the launcher's ranks are not one per GPU.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    world = int(environment["WORLD_SIZE"])
    if world != cluster.world:
        raise VirtualGpuError(
            f"--gpus {cluster.card.name}:{cluster.per_node} --nodes {cluster.nodes} is "
            f"{cluster.world} GPUs, and this job has {world} ranks (WORLD_SIZE); nearest: --gpus "
            f"{cluster.card.name}:{max(1, world // cluster.nodes)} --nodes {cluster.nodes}")
    return int(environment["RANK"])

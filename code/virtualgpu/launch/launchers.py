"""Detect the rank of a process that torchrun or srun has started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.launch.cluster import Cluster

PORTS = range(15_000, 30_000)  # for the rendezvous of srun's steps, by job and step
# Slurm's equivalents of torchrun's environment variables.
SLURM = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def adopt_slurm(environment: MutableMapping[str, str]) -> None:
    """Set torchrun's variables in a Slurm step of several tasks, unless they are set."""
    if "RANK" in environment or int(environment.get("SLURM_NTASKS") or 1) < 2 or (
            "SLURM_PROCID" not in environment or "SLURM_STEP_ID" not in environment):
        return
    for name, slurm in SLURM.items():
        environment.setdefault(name, environment[slurm])
    if "MASTER_PORT" not in environment:
        job, step = (int(environment.get(name) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        environment["MASTER_PORT"] = str(PORTS.start + (64 * job + step) % len(PORTS))
        environment["MASTER_ADDR"] = first_node(environment.get("SLURM_STEP_NODELIST", "127.0.0.1"))


def first_node(nodes: str) -> str:
    """Return the first node of Slurm's list, such as node07 of node[07-09,11],other3."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(filter(None, match.groups())) if match else nodes


def own_rank(cluster: Cluster, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank, or None if no launcher has started it.

    Raises:
        VirtualGpuError: the number of ranks is not the number of GPUs.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    world = int(environment["WORLD_SIZE"])
    if world != cluster.world and len(cluster.kinds) > 1:
        raise VirtualGpuError(f"--gpus: {cluster} has {cluster.world} GPUs, but this job has "
                              f"{world} ranks (WORLD_SIZE); start one rank for each GPU")
    if world != cluster.world:
        raise VirtualGpuError(
            f"--gpus {cluster.card.name}:{cluster.per_node} --nodes {cluster.nodes} is "
            f"{cluster.world} GPUs, but this job has {world} ranks (WORLD_SIZE); closest match: "
            f"--gpus {cluster.card.name}:{max(1, world // cluster.nodes)} --nodes {cluster.nodes}")
    return int(environment["RANK"])

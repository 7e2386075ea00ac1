"""`nvidia-smi` for the cluster: find the GPUs and the jobs on them; virtualgpu.smi shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from job_monitor.nvidia_smi import cards
from labcore.errors import LabError
from slurmbox.profile import from_json
from virtualgpu.core.cards import nearest
from virtualgpu.smi import cli
from virtualgpu.smi.cli import NO_DRIVER, NOT_FOUND, SmiExit
from virtualgpu.smi.gpus import Gpu


def query_gpus(state: Path, proc: Path, node: str | None) -> dict[str, list[Gpu]]:
    """Return the GPUs to show, by node.

    Args:
        state: the cluster's folder.
        proc: see cards.running_processes.
        node: the only node to show; None for the node on which a job runs, or for all.

    Raises:
        SmiExit: the cluster is not running, or there is no such node.
    """
    try:
        record = json.loads((state / "running.json").read_text())
        declared, fabric = cards.declared_gpus(record), cards.has_fabric(record)
        cpus = from_json(record["profile"]).cpus
    except (OSError, ValueError) as error:
        raise SmiExit(NO_DRIVER, "nvidia-smi: error: the cluster is not running: lab cluster up"
                      ) from error
    except (LabError, KeyError, TypeError) as error:
        raise SmiExit(NO_DRIVER, "nvidia-smi: error: a different version of lab started the "
                      f"cluster ({error}): run lab cluster down, then lab cluster up") from error
    own_node = os.environ.get("SLURMD_NODENAME")
    wanted = node or own_node
    if wanted is not None and wanted not in declared:
        raise SmiExit(NOT_FOUND, f"ERROR: --node {wanted}: no such node; nearest: "
                                 f"{nearest(wanted, declared)[0]}")
    shown = cards.assign(declared, cards.running_processes(state / "ranks", proc), fabric)
    if wanted is not None:
        shown = {wanted: shown[wanted]}
    if own_node is not None and wanted == own_node:
        shown[own_node] = cards.job_gpus(shown[own_node], dict(os.environ))
    return {name: [replace(gpu, count=len(gpus), cpus=cpus) for gpu in gpus]
            for name, gpus in shown.items()}


def main(state: Path, proc: Path, argv: Sequence[str]) -> int:
    """Run the command and return its exit code.

    Args:
        state: the cluster's folder.
        proc: see cards.running_processes.
        argv: the command-line arguments.
    """
    return cli.main(partial(query_gpus, state, proc), argv)

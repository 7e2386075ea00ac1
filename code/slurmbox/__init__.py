"""Run a real Slurm on one machine: `lab cluster up|down|status`.

Other packages use:

    environment(home)         this process's environment, with the cluster's commands on PATH
    ensure_up(home, profile)  start or heal the cluster; True if this call started it
    down(home)                stop the cluster
    leave_job(home)           on a site, leave the job that this process runs in; return its ID
    link_dli(home)            link `/dli` to the workspace, if the machine allows it

control.py starts and stops the cluster, config.py writes slurm.conf, and init.py supervises the
daemons (daemon.py, daemons.py) inside namespaces.py. site.py uses a site's own cluster instead, and
containers.py runs one container per node. The package may import labcore, and virtualgpu for the
names of GPU models, but never the trainer. Begin with control.py; docs/cluster.md is the user's
guide.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from labcore.progress import Notify

if TYPE_CHECKING:
    from slurmbox.profile import ClusterProfile


def environment(home: Path) -> dict[str, str]:
    from slurmbox import clients

    return clients.full_environment(home)


def ensure_up(home: Path, profile: ClusterProfile | None = None, notify: Notify = print) -> bool:
    from slurmbox import control

    return control.ensure_up(home, profile, notify)


def down(home: Path, notify: Notify = print) -> None:
    from slurmbox import control

    control.down(home, notify)


def leave_job(home: Path) -> str | None:
    from slurmbox import site_clients
    from slurmbox.layout import Layout

    return site_clients.leave_job(os.environ) if Layout(home).site.exists() else None


def link_dli(home: Path) -> str | None:
    from slurmbox import dli

    return dli.link_dli(home)

"""A real Slurm on one machine: `lab cluster up|down|status`.

What other packages use:

    environment(home)         this process's environment, with the cluster's commands on PATH
    ensure_up(home, profile)  start the cluster, or heal it; True if it was started here
    down(home)                stop it
    leave_job(home)           on a site: forget the job this process runs in; its number
    link_dli(home)            `/dli` -> the workspace, where the machine allows it

control.py starts and stops it, config.py writes slurm.conf, init.py is the supervisor of its
daemons (daemon.py, daemons.py) inside namespaces.py, site.py stands in for a site's own cluster,
containers.py for one container per node. It may import labcore, and virtualgpu for the names of GPU
models; never the trainer. Begin with control.py; docs/cluster.md is the user's guide.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurmbox.profile import Profile

Say = Callable[[str], None]


def environment(home: Path) -> dict[str, str]:
    from slurmbox import clients

    return clients.full_environment(home)


def ensure_up(home: Path, profile: Profile | None = None, say: Say = print) -> bool:
    from slurmbox import control

    return control.ensure_up(home, profile, say)


def down(home: Path, say: Say = print) -> None:
    from slurmbox import control

    control.down(home, say)


def leave_job(home: Path) -> str | None:
    from slurmbox import site_clients
    from slurmbox.layout import Layout

    return site_clients.leave_job(os.environ) if Layout(home).site.exists() else None


def link_dli(home: Path) -> str | None:
    from slurmbox import dli

    return dli.link_dli(home)

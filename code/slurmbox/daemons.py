"""List the programs of a cluster, in the order in which they start."""

from __future__ import annotations

import os
from pathlib import Path

from slurmbox import accounting
from slurmbox.addresses import ClusterNetwork
from slurmbox.config import RUN_VARIABLE
from slurmbox.daemon import Daemon, listening
from slurmbox.install import SYSTEM_FOLDERS, Slurm
from slurmbox.layout import Layout
from slurmbox.profile import ClusterProfile


def base_environment(layout: Layout, network: ClusterNetwork, slurm: Slurm) -> dict[str, str]:
    """Return the daemons' environment, which has nothing from the shell that ran `up`."""
    values = {
        "PATH": ":".join(SYSTEM_FOLDERS), "HOME": os.environ.get("HOME", "/"),
        "SLURM_CONF": str(layout.short / "etc" / "slurm.conf"), RUN_VARIABLE: str(layout.run),
    }
    if slurm.library_folders:
        values["LD_LIBRARY_PATH"] = ":".join(slurm.library_folders)
    if network.loopback and slurm.nss_wrapper:
        values["LD_PRELOAD"] = slurm.nss_wrapper
        values["NSS_WRAPPER_HOSTS"] = f"{layout.short}/etc/hosts"
    return values


def all_daemons(layout: Layout, profile: ClusterProfile, network: ClusterNetwork, slurm: Slurm
                ) -> list[Daemon]:
    daemons = [munged(layout, slurm)]
    if profile.accounting:
        daemons += accounting.daemons(layout, network, slurm)
    return [*daemons, slurmctld(layout, network),
            *(slurmd(layout, name) for name in profile.node_names)]


def slurmctld(layout: Layout, network: ClusterNetwork) -> Daemon:
    return Daemon("slurmctld", [f"{layout.short}/sbin/slurmctld", "-D", "-i"],
                  is_up=lambda: listening(network.controller_port))


def slurmd(layout: Layout, name: str) -> Daemon:
    sbin = layout.short / "sbin"
    command = [f"{sbin}/slurmd", "-D", "-N", name, "-d", f"{sbin}/stepd"]
    return Daemon(f"slurmd.{name}", command, node=name)


def munged(layout: Layout, slurm: Slurm, key: Path | None = None, host: str = "") -> Daemon:
    """Return munge's daemon.

    Args:
        layout: the cluster's folders.
        slurm: Slurm's programs.
        key: the path of munge's key, if it is not in the workspace.
        host: a suffix for its name and logs, if several containers share the workspace.
    """
    name = f"munged.{host}" if host else "munged"
    key = key or layout.short / "etc" / "munge.key"
    seed = layout.run / "munge.seed" if host else f"{layout.short}/etc/munge.seed"
    # --force, because the owners of / and /tmp look foreign inside a user namespace.
    command = [slurm.program("munged"), "--foreground", "--force",
               f"--key-file={key}", f"--socket={layout.munge_socket}",
               f"--pid-file={layout.run}/munged.pid", f"--log-file={layout.short}/log/{name}.log",
               f"--seed-file={seed}", "--num-threads=2"]
    return Daemon(name, command, is_up=layout.munge_socket.exists)

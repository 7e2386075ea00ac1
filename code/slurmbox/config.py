"""Write Slurm's configuration. Everything that depends on Slurm's version is decided here."""

from __future__ import annotations

import os
import pwd
import secrets
import shlex
import socket
import stat
import sys
from pathlib import Path

import psutil

from labcore.atomic import replace_link, write_atomic
from labcore.errors import LabError
from slurmbox import jobfolders, namespaces
from slurmbox.addresses import ClusterNetwork
from slurmbox.install import Slurm
from slurmbox.layout import Layout
from slurmbox.profile import PARTITION, ClusterProfile, virtual_network

STATUS_VARIABLE = "RANK_STATUS"  # the folder for the status files of a job's ranks
RUN_VARIABLE = "LAB_CLUSTER_RUN"  # set in every process of a cluster, to find leftover ones
# Slurm wants a character device per GPU and never opens it. Every machine has these.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")


def memory_per_cpu() -> int:
    """Return the MiB that a job may use per requested CPU if it does not pass --mem.

    A node has 32 virtual CPUs on any machine, so its memory is virtual, too: a job on one CPU with
    two PyTorch ranks must run, and a job on all CPUs must fit. So the share is about the memory
    of a whole laptop.
    """
    total = psutil.virtual_memory().total // 2**20
    return max(4096, min(8192, total // 1024 * 1024))


def node_memory(profile: ClusterProfile) -> int:
    """Return the memory of a node in MiB."""
    if profile.memory is not None:
        return 1024 * profile.memory
    return profile.cpus * memory_per_cpu()


def gpu_devices(count: int) -> list[str]:
    """Return `count` existing character devices that stand for GPUs. Raises LabError."""
    names = [*DEVICES, *sorted(entry.name for entry in os.scandir("/dev"))]
    devices = [f"/dev/{name}" for name in dict.fromkeys(names) if _is_device(f"/dev/{name}")]
    if len(devices) < count:
        raise LabError(f"--gpus: {count} GPUs per node, but this machine's /dev has only "
                       f"{len(devices)} character devices to stand for them; nearest: "
                       f"{len(devices)}")
    return devices[:count]


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def user_name() -> str:
    """Return the name of this process's user, from its UID. Raises LabError if it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise LabError(f"user {os.getuid()} has no name on this machine, but Slurm needs one: add "
                       "a line for it to /etc/passwd") from error


def slurm_conf(layout: Layout, profile: ClusterProfile, network: ClusterNetwork, slurm: Slurm
               ) -> str:
    lines = _fixed_lines(layout, profile, network)
    if network.loopback:
        lines.append("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny")
    if slurm.replaces_plugins:
        lines.append(f"PluginDir={layout.short}/plugins")
    lines += _accounting_lines(layout, profile, network)
    lines += [_node_line(profile, network, index) for index in range(len(profile.nodes))]
    lines += _partition_lines(profile)
    return "\n".join(lines) + "\n"


def _fixed_lines(layout: Layout, profile: ClusterProfile, network: ClusterNetwork) -> list[str]:
    short, user = layout.short, user_name()
    share = min(memory_per_cpu(), node_memory(profile) // profile.cpus)
    return f"""\
ClusterName=lab
SlurmctldHost={network.controller}
SlurmctldPort={network.controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
MailProg=/bin/true
StateSaveLocation={short}/state
SlurmdSpoolDir={short}/spool/%n
SlurmctldPidFile={layout.run}/slurmctld.pid
SlurmdPidFile={layout.run}/%n.pid
SlurmctldLogFile={short}/log/slurmctld.log
SlurmdLogFile={short}/log/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
TaskProlog={short}/sbin/task-prolog
Epilog={short}/sbin/epilog
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1
EnforcePartLimits=ALL
ReturnToService=2
KillWait=5
UnkillableStepTimeout=15
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=20
DefMemPerCPU={share}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
GresTypes=gpu
""".splitlines()


def _accounting_lines(layout: Layout, profile: ClusterProfile, network: ClusterNetwork
                      ) -> list[str]:
    if not profile.accounting:
        return ["AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/filetxt",
                f"JobCompLoc={layout.short}/log/jobcomp.txt"]
    return ["AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={'localhost' if network.loopback else 'login'}",
            f"AccountingStoragePort={network.accounting_port}",
            f"AccountingStoragePass={layout.munge_socket}", "AccountingStorageTRES=gres/gpu"]


def _node_line(profile: ClusterProfile, network: ClusterNetwork, index: int) -> str:
    node = profile.nodes[index]
    address = (f"NodeAddr={network.node_address(index, node.name)} "
               f"Port={network.node_port(index)}")
    if network.loopback:
        address = f"NodeHostname=localhost {address}"
    gpus = f" Gres={node.gres} Feature={node.gpu_type}" if node.gpus else ""
    return (f"NodeName={node.name} {address} CPUs={profile.cpus} Boards=1 "
            f"SocketsPerBoard=1 CoresPerSocket={profile.cpus} ThreadsPerCore=1 "
            f"RealMemory={node_memory(profile)}{gpus} State=UNKNOWN")


def _partition_lines(profile: ClusterProfile) -> list[str]:
    lines = []
    for name, nodes in profile.partitions().items():
        default = " Default=YES" if name == PARTITION else ""
        members = ",".join(node.name for node in nodes)
        lines.append(f"PartitionName={name} Nodes={members}{default} MaxTime=INFINITE State=UP")
    return lines


def gres_conf(profile: ClusterProfile) -> str:
    return "".join(f"NodeName={node.name} Name=gpu Type={node.gpu_type} "
                   f"File={','.join(gpu_devices(node.gpus))}\n"
                   for node in profile.nodes if node.gpus)


def hosts_file(profile: ClusterProfile, network: ClusterNetwork) -> str:
    """Return the cluster's /etc/hosts, which has its own names only."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    if network.loopback:
        lines += [f"127.0.0.1 {os.uname().nodename}", "127.0.0.1 login"]
    else:
        lines.append(f"{namespaces.LOGIN_ADDRESS} login")
    lines += [f"{network.node_address(index, name)} {name}"
              for index, name in enumerate(profile.node_names)]
    # torch listens on IPv6 and looks up such addresses. They get names of their own, so that
    # slurmnode1 still resolves to a single IPv4 address.
    if network.loopback:
        lines.append("::ffff:127.0.0.1 localhost.lab")
        if has_ipv6_loopback():  # libnss-wrapper's passive lookups send servers there
            lines += [f"::1 {name}" for name in profile.node_names]
    else:
        lines += [f"::ffff:{network.node_address(index, name)} {name}.lab"
                  for index, name in enumerate(profile.node_names)]
        lines.append(f"::ffff:{namespaces.LOGIN_ADDRESS} login.lab")
    return "\n".join(lines) + "\n"


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def virtual_gpus(layout: Layout, profile: ClusterProfile) -> list[str]:
    """Return lines of the task prolog that set a task's GPU model and network from its own node.

    srun passes on the batch script's environment, which describes the first node, so it is
    always overridden.
    """
    nodes: dict[str, list[str]] = {}
    for node in profile.nodes:
        if node.card:
            nodes.setdefault(node.card, []).append(node.name)
    cases = [f"{'|'.join(names)}) echo export VIRTUAL_GPU={card} ;;"
             for card, names in nodes.items()]
    cases += [_real_gpus(node.name) for node in profile.nodes if node.real]
    return ['case "$SLURMD_NODENAME" in', *cases, "*) echo unset VIRTUAL_GPU ;;", "esac",
            f"read -r network < {layout.short}/etc/virtual-network",
            'if [ -n "$network" ]; then echo "export VIRTUAL_NETWORK=$network"',
            "else echo unset VIRTUAL_NETWORK; fi"]


def _real_gpus(node: str) -> str:
    from virtualgpu.core.slots import INSTEAD_OF_CPU

    return f"{node}) echo unset VIRTUAL_GPU; echo export {INSTEAD_OF_CPU}=cuda ;;"


def write_plugins(folder: Path, slurm: Slurm) -> None:
    """Fill a folder with links to the plugins that Slurm can load."""
    if folder.is_symlink():  # an older version linked the whole folder
        folder.unlink()
    folder.mkdir(exist_ok=True)
    plugins = {path.name: path for path in slurm.plugin_folder.iterdir()
               if path.name not in slurm.unusable_plugins}
    for old in folder.iterdir():
        if old.name not in plugins:
            old.unlink()
    for name, path in plugins.items():
        replace_link(folder / name, path)


def write_virtual_network(layout: Layout, rate: str) -> None:
    """Write the network that virtual GPUs model.

    The task prolog reads it at every start, because the rate may change while jobs run.
    """
    put(layout.state / "etc" / "virtual-network", virtual_network(rate) + "\n")


def task_prolog(layout: Layout, profile: ClusterProfile, network: ClusterNetwork, slurm: Slurm,
                programs: list[str]) -> str:
    """Return the task prolog.

    Slurm runs it before every task, including the batch script, and adds its `export` lines to the
    environment, so a job's environment is complete however it was submitted (--export=NONE, cron).

    Args:
        layout: the cluster's folders.
        profile: the cluster's nodes.
        network: the addresses of its daemons.
        slurm: Slurm's programs.
        programs: folders to put first on PATH.
    """
    quoted = shlex.quote(str(layout.slurm_conf))
    folders = "\n".join(
        f'case ":$PATH:" in *:{shlex.quote(folder)}:*) ;; *) PATH={shlex.quote(folder)}:$PATH ;; '
        "esac" for folder in reversed(programs))
    lines = ["#!/bin/sh", folders, 'echo "export PATH=$PATH"',
             f'echo export SLURM_CONF={quoted}',
             f"echo export {RUN_VARIABLE}={layout.run}",
             f'echo export {STATUS_VARIABLE}={shlex.quote(str(layout.ranks))}"/$SLURM_JOB_ID"',
             f'[ -n "$LAB_HOME" ] || echo export LAB_HOME={shlex.quote(str(layout.home))}',
             "# Classic scripts run `set -e` and `clear`, which fails if TERM is not usable.",
             'clear >/dev/null 2>&1 || echo "export TERM=vt100"']
    lines += [f'[ -n "${name}" ] || echo export {name}={network.interface}'
              for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")]
    if network.loopback and slurm.nss_wrapper:
        lines += [f"echo export LD_PRELOAD={shlex.quote(slurm.nss_wrapper)}",
                  f"echo export NSS_WRAPPER_HOSTS={layout.short}/etc/hosts"]
    lines += virtual_gpus(layout, profile) + jobfolders.prolog_lines(layout)
    lines.append("exit 0  # a job must not fail because its record cannot be written")
    return "\n".join(lines) + "\n"


def script(name: str, *arguments: str) -> str:
    """Return a script that runs one of our small programs without site-packages, to start fast."""
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name(name)), *arguments]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'


def write(layout: Layout, profile: ClusterProfile, network: ClusterNetwork, slurm: Slurm,
          programs: list[str], key: Path | None = None) -> None:
    """Write all configuration files.

    Args:
        layout: the cluster's folders.
        profile: the cluster's nodes.
        network: the addresses of its daemons.
        slurm: Slurm's programs.
        programs: folders to put first on jobs' PATH.
        key: the path of munge's key, if it is not in the workspace.
    """
    etc, sbin = layout.state / "etc", layout.state / "sbin"
    put(etc / "slurm.conf", slurm_conf(layout, profile, network, slurm))
    put(etc / "gres.conf", gres_conf(profile))
    if not network.containers:  # containers ask their network's name server
        put(etc / "hosts", hosts_file(profile, network))
    if slurm.version() >= (24, 5):  # older versions refuse a file with this line
        put(etc / "cgroup.conf", "CgroupPlugin=disabled\n")
    write_virtual_network(layout, profile.link)
    put(sbin / "task-prolog", task_prolog(layout, profile, network, slurm, programs), 0o755)
    put(sbin / "epilog", script("epilog.py", f"{RUN_VARIABLE}={layout.run}"), 0o755)
    put(sbin / "stepd", script("stepd.py", slurm.program("slurmstepd")), 0o755)
    for name in ("slurmctld", "slurmd"):  # slurmctld drops the GPUs if it runs under another name
        replace_link(sbin / name, Path(slurm.program(name)))
    if slurm.replaces_plugins:
        write_plugins(layout.state / "plugins", slurm)
    key = key or etc / "munge.key"
    if not key.exists():
        put(key, secrets.token_hex(64), 0o600)
    layout.job_records.touch()


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file completely or not at all, because `up` may be killed at any moment."""
    write_atomic(path, text.encode(), mode)

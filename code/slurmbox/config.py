"""Writes Slurm's configuration. Whatever depends on Slurm's version is decided here."""

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

from labcore.atomic import put_link, put_whole
from labcore.errors import LabError
from slurmbox import keeping, namespaces
from slurmbox.install import Slurm
from slurmbox.layout import Layout
from slurmbox.place import Place
from slurmbox.profile import CPUS, PARTITION, Profile, virtual_network

# Slurm wants character devices for GPUs and never opens them. Every machine has these.
STATUS_VARIABLE = "RANK_STATUS"  # where a job's ranks say what they do now
RUN_VARIABLE = "LAB_CLUSTER_RUN"  # marks every process of a cluster, to find strays by
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")


def memory_per_cpu() -> int:
    """MiB that a job may use per CPU it asks for, when it names no --mem.

    CPUs are virtual (32 on any machine), so is memory: a job on one CPU with two PyTorch ranks
    must live, and a job on all 32 must fit. So the share is of the order of a whole laptop.
    """
    total = psutil.virtual_memory().total // 2**20
    return max(4096, min(8192, total // 1024 * 1024))


def gpu_devices(count: int) -> list[str]:
    """`count` existing character devices to stand for GPUs."""
    names = [*DEVICES, *sorted(entry.name for entry in os.scandir("/dev"))]
    found = [f"/dev/{name}" for name in dict.fromkeys(names) if _is_device(f"/dev/{name}")]
    if len(found) < count:
        raise LabError(f"--gpus: {count} GPUs in a node, but this machine's /dev has only "
                       f"{len(found)} character devices to stand for them: ask for {len(found)}")
    return found[:count]


def _is_device(path: str) -> bool:
    try:
        return stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        return False


def user_name() -> str:
    """Return the name of this process's user, whatever the environment says. Raises LabError."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise LabError(f"user {os.getuid()} has no name on this machine, and Slurm wants one: add "
                       "a line for it to /etc/passwd") from error


def slurm_conf(layout: Layout, profile: Profile, place: Place, slurm: Slurm) -> str:
    short = layout.short
    user = user_name()
    lines = f"""\
ClusterName=lab
SlurmctldHost={place.controller}
SlurmctldPort={place.controller_port}
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
DefMemPerCPU={memory_per_cpu()}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
GresTypes=gpu
""".splitlines()
    if place.loopback:
        lines.append("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny")
    if slurm.plugin_folder:
        lines.append(f"PluginDir={short}/plugins")
    lines += _accounting_lines(layout, profile, place)
    lines += [_node_line(profile, place, index) for index in range(len(profile.nodes))]
    lines += _partition_lines(profile)
    return "\n".join(lines) + "\n"


def _accounting_lines(layout: Layout, profile: Profile, place: Place) -> list[str]:
    if not profile.accounting:
        return ["AccountingStorageType=accounting_storage/none", "JobCompType=jobcomp/filetxt",
                f"JobCompLoc={layout.short}/log/jobcomp.txt"]
    return ["AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={'localhost' if place.loopback else 'login'}",
            f"AccountingStoragePort={place.accounting_port}",
            f"AccountingStoragePass={layout.munge_socket}", "AccountingStorageTRES=gres/gpu"]


def _node_line(profile: Profile, place: Place, index: int) -> str:
    node = profile.nodes[index]
    where = f"NodeAddr={place.node_address(index, node.name)} Port={place.node_port(index)}"
    if place.loopback:
        where = f"NodeHostname=localhost {where}"
    gpus = f" Gres={node.gres} Feature={node.gpu_type}" if node.gpus else ""
    return (f"NodeName={node.name} {where} CPUs={CPUS} Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={CPUS * memory_per_cpu()}{gpus} "
            "State=UNKNOWN")


def _partition_lines(profile: Profile) -> list[str]:
    lines = []
    for name, nodes in profile.partitions().items():
        default = " Default=YES" if name == PARTITION else ""
        members = ",".join(node.name for node in nodes)
        lines.append(f"PartitionName={name} Nodes={members}{default} MaxTime=INFINITE State=UP")
    return lines


def gres_conf(profile: Profile) -> str:
    return "".join(f"NodeName={node.name} Name=gpu Type={node.gpu_type} "
                   f"File={','.join(gpu_devices(node.gpus))}\n"
                   for node in profile.nodes if node.gpus)


def hosts_file(profile: Profile, place: Place) -> str:
    """/etc/hosts of the cluster: its own names, and no other of the machine's."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    if place.loopback:
        lines += [f"127.0.0.1 {os.uname().nodename}", "127.0.0.1 login"]
    else:
        lines.append(f"{namespaces.LOGIN_ADDRESS} login")
    lines += [f"{place.node_address(index, name)} {name}"
              for index, name in enumerate(profile.node_names)]
    # torch listens on IPv6 and asks for the names of such addresses; other names, so that
    # looking up slurmnode1 still finds one plain address.
    if place.loopback:
        lines.append("::ffff:127.0.0.1 localhost.lab")
        if has_ipv6_loopback():  # libnss-wrapper's passive look-ups lead servers there
            lines += [f"::1 {name}" for name in profile.node_names]
    else:
        lines += [f"::ffff:{place.node_address(index, name)} {name}.lab"
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


def virtual_gpus(layout: Layout, profile: Profile) -> list[str]:
    """Lines of the task prolog that tell a task of its own node's card and network.

    What srun brings along from the batch script is of the first node: it never counts.
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


def write_network(layout: Layout, rate: str) -> None:
    """The task prolog reads it at every start, since the rate may change while jobs run."""
    put(layout.state / "etc" / "virtual-network", virtual_network(rate) + "\n")


def task_prolog(layout: Layout, profile: Profile, place: Place, slurm: Slurm,
                programs: list[str]) -> str:
    """Slurm runs this before every task, the batch script included, and takes its `export` lines.

    It makes a job's environment whole however the job was submitted (--export=NONE, cron).
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
             "# Classic scripts say `set -e` and `clear`, which fails where TERM is not usable.",
             'clear >/dev/null 2>&1 || echo "export TERM=vt100"']
    lines += [f'[ -n "${name}" ] || echo export {name}={place.interface}'
              for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")]
    if place.loopback and slurm.nss_wrapper:
        lines += [f"echo export LD_PRELOAD={shlex.quote(slurm.nss_wrapper)}",
                  f"echo export NSS_WRAPPER_HOSTS={layout.short}/etc/hosts"]
    lines += virtual_gpus(layout, profile) + keeping.prolog_lines(layout)
    lines.append("exit 0  # a record that cannot be kept is no reason to fail a job")
    return "\n".join(lines) + "\n"


def script(name: str, *arguments: str) -> str:
    """An executable that runs one of our small programs without site packages: it starts fast."""
    words = [sys.executable, "-I", "-S", str(Path(__file__).with_name(name)), *arguments]
    return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'


def write(layout: Layout, profile: Profile, place: Place, slurm: Slurm,
          programs: list[str], key: Path | None = None) -> None:
    """key: munge's, where it is not kept with the rest."""
    etc, sbin = layout.state / "etc", layout.state / "sbin"
    put(etc / "slurm.conf", slurm_conf(layout, profile, place, slurm))
    put(etc / "gres.conf", gres_conf(profile))
    if not place.containers:  # those ask their network's name server
        put(etc / "hosts", hosts_file(profile, place))
    if slurm.version() >= (24, 5):  # before, this line is unknown and Slurm refuses the file
        put(etc / "cgroup.conf", "CgroupPlugin=disabled\n")
    write_network(layout, profile.link)
    put(sbin / "task-prolog", task_prolog(layout, profile, place, slurm, programs), 0o755)
    put(sbin / "epilog", script("epilog.py", f"{RUN_VARIABLE}={layout.run}"), 0o755)
    put(sbin / "stepd", script("stepd.py", slurm.program("slurmstepd")), 0o755)
    for name in ("slurmctld", "slurmd"):  # under slurmctld's other name it drops the GPUs
        put_link(sbin / name, Path(slurm.program(name)))
    if slurm.plugin_folder:
        put_link(layout.state / "plugins", slurm.plugin_folder)
    key = key or etc / "munge.key"
    if not key.exists():
        put(key, secrets.token_hex(64), 0o600)
    layout.job_records.touch()


def put(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file as a whole or not at all: `up` may be killed at any moment."""
    put_whole(path, text.encode(), mode)

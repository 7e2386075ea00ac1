"""The commands that students type: small wrappers that enter the cluster and start Slurm's own."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from labcore import rankfiles
from slurmbox import namespaces
from slurmbox.config import put
from slurmbox.install import CLIENTS, Slurm
from slurmbox.layout import Layout
from slurmbox.place import COMPOSE, Place
from slurmbox.profile import CPUS, Profile

# Descriptor of the supervisor that holds the login node's mount namespace.
LOGIN_MOUNTS = 60

SMI = "nvidia-smi"
NOT_RUNNING = "the cluster is not running: lab cluster up"
NO_CONTROLLER = f"the controller's container does not run; on the machine itself: {COMPOSE} up -d"


def program_folders(layout: Layout) -> list[str]:
    """Return the folders that go first on PATH: our wrappers, then the course's Python."""
    python = str(Path(sys.executable).parent)
    return [str(layout.site_bin if layout.site.exists() else layout.bin), python]


def environment(home: Path) -> dict[str, str]:
    """The variables a shell needs; also for JupyterLab and for tests. The cluster may be down."""
    layout = Layout(home)
    first = program_folders(layout)
    old = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    rest = [folder for folder in old if folder not in first and "/.cluster/bin" not in folder]
    values = {"PATH": ":".join([*first, *dict.fromkeys(rest)]), "LAB_HOME": str(home)}
    if not layout.site.exists():
        values["SLURM_CONF"] = str(layout.slurm_conf)
    return values


def full_environment(home: Path) -> dict[str, str]:
    return os.environ | environment(home)


def exports(home: Path) -> str:
    """For `eval` in sh and bash."""
    return "".join(f"export {name}={shlex.quote(value)}\n"
                   for name, value in environment(home).items())


def write_wrappers(layout: Layout, slurm: Slurm, profile: Profile, place: Place) -> None:
    put(layout.bin / SMI, virtual_smi(layout, place), 0o755)
    for name in CLIENTS:
        target = slurm.find(name)
        if target is None:
            (layout.bin / name).unlink(missing_ok=True)
        elif name == "sacct" and not profile.accounting:
            words = shlex.join([sys.executable, "-I", "-m", "slurmbox.sacct"])
            put(layout.bin / name, _wrapper(layout, slurm, name, words, place), 0o755)
        else:
            hint = too_large(profile, place) if name == "sbatch" else ""
            text = _wrapper(layout, slurm, name, shlex.quote(target), place, hint)
            put(layout.bin / name, text, 0o755)


def too_large(profile: Profile, place: Place) -> str:
    """Return a hint for a job that is too large: what the cluster has, and how to get more."""
    nodes = len(profile.nodes)
    there = (f"the cluster has {nodes} node(s) of {CPUS} CPUs, GPUs per node: {profile.gpus} (lab "
             "cluster status)")
    if place.containers:
        return there
    return f"{there}. For more: lab cluster down; lab cluster up --nodes {nodes + 1}"


def write_stubs(layout: Layout) -> None:
    """Before the first `up`: commands that say what to do."""
    if not (layout.bin / SMI).exists():
        put(layout.bin / SMI, virtual_smi(layout, Place("loopback")), 0o755)
    for name in CLIENTS:
        if not (layout.bin / name).exists():
            text = f'#!/bin/sh\necho "{name}: error: {NOT_RUNNING}" >&2\nexit 1\n'
            put(layout.bin / name, text, 0o755)


def _wrapper(layout: Layout, slurm: Slurm, name: str, words: str, place: Place, hint: str = ""
             ) -> str:
    quoted = shlex.quote(str(layout.state))
    lines = ["#!/bin/sh", f"# {name}, on this workspace's cluster. Written by `lab cluster up`.",
             f"state={quoted}", 'export SLURM_CONF="$state/etc/slurm.conf"']
    if slurm.library_folders:
        extra = shlex.quote(":".join(slurm.library_folders))
        lines.append(f'export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}"{extra}')
    if place.loopback and slurm.nss_wrapper:
        lines += [f"export LD_PRELOAD={shlex.quote(slurm.nss_wrapper)}",
                  f"export NSS_WRAPPER_HOSTS={layout.short}/etc/hosts"]
    if place.containers:  # the controller's processes are not to be seen from here
        lines.append(f'[ -e "$state/ready" ] || {{ echo "{name}: error: {NO_CONTROLLER}" >&2; '
                     "exit 1; }")
    else:
        if not place.loopback:
            lines += [f"if read -r inside 2>/dev/null <{namespaces.MARKER} "
                      f'&& [ "$inside" = {layout.run.name} ]; then exec {words} "$@"; fi']
        lines.append(_alive(name))
    plain = place.loopback or place.containers
    command = f'exec {words} "$@"' if plain else _enter(words)
    lines.append(_explain(command, name, hint) if hint else command)
    return "\n".join(lines) + "\n"


def _explain(command: str, name: str, hint: str) -> str:
    """Run a command that needs no terminal; after a refusal for the job's size, add the hint."""
    return (f"exec 3>&1\nerrors=$({command} 2>&1 >&3)\ncode=$?\n"
            'if [ -n "$errors" ]; then printf "%s\\n" "$errors" >&2; fi\n'
            'case $errors in *"Node count"*|*"node configuration"*|*"can not be satisfied"*)\n'
            f"    echo {shlex.quote(f'{name}: {hint}')} >&2;;\nesac\nexit $code")


# Never in front of a real one. WSL has it in a folder of its own, maybe not on the PATH.
_REAL_SMI = """\
folders=$PATH:/usr/bin:/usr/lib/wsl/lib
set -f
IFS=:
for folder in $folders; do
    case $folder in */.cluster/bin) continue ;; esac
    [ "$folder/nvidia-smi" -ef "$0" ] && continue  # by another name
    if [ -f "$folder/nvidia-smi" ] && [ -x "$folder/nvidia-smi" ]; then
        exec "$folder/nvidia-smi" "$@"
    fi
done
unset IFS
set +f
if [ -e /dev/nvidia0 ]; then
    echo "nvidia-smi: error: this machine has a GPU, and its nvidia-smi is not on the PATH" >&2
    exit 12
fi"""

# Reading /proc in the shell itself keeps the whole wrapper at a few milliseconds.
_ALIVE = """\
alive() {
    [ -e "$state/ready" ] && read -r pid started 2>/dev/null <"$state/init.pid" || return 1
    read -r line 2>/dev/null <"/proc/$pid/stat" || return 1
    set -- ${line##*) }
    [ "$1" != Z ] && [ "${20}" = "$started" ]
}
alive || { echo "NAME: error: NOT_RUNNING" >&2; exit CODE; }"""


def _alive(name: str, code: int = 1) -> str:
    """End with a message unless the cluster runs; `pid` is its supervisor's then."""
    return (_ALIVE.replace("NAME", name).replace("NOT_RUNNING", NOT_RUNNING)
            .replace("CODE", str(code)))


def virtual_smi(layout: Layout, place: Place) -> str:
    """The wrapper of nvidia-smi for virtual cards. It needs no Slurm, so it enters nothing; but it
    must find the processes by the numbers of the cluster's PID namespace."""
    program = Path(__file__).parents[1] / "job_monitor" / "nvidia_smi" / "__main__.py"
    start = shlex.join([sys.executable, "-I", "-S", str(program)])

    def command(proc: str) -> str:
        return f'exec {start} "$state" {proc} "$@"'

    lines = ["#!/bin/sh", "# nvidia-smi of the virtual cards; a real one comes first. "
             "Written by `lab cluster up`.", _REAL_SMI, f"state={shlex.quote(str(layout.state))}"]
    if place.containers:  # outside of a job the processes are in other containers
        return "\n".join([*lines, f'if [ -n "$SLURMD_NODENAME" ]; then {command("/proc")}; fi',
                          command(rankfiles.ELSEWHERE)]) + "\n"
    if not place.loopback:
        lines += [f"if read -r inside 2>/dev/null <{namespaces.MARKER} "
                  f'&& [ "$inside" = {layout.run.name} ]; then {command("/proc")}', "fi"]
    lines.append(_alive(SMI, 9))  # what the real one says without a driver
    lines.append(command("/proc" if place.loopback else '"/proc/$pid/root/proc"'))
    return "\n".join(lines) + "\n"


def _enter(words: str) -> str:
    """Join the login node, but not its PID namespace: no process stands between tty and command."""
    user = '--user="/proc/$pid/ns/user" --preserve-credentials ' if os.getuid() else ""
    return (f'exec nsenter {user}--mount="/proc/$pid/fd/{LOGIN_MOUNTS}" --uts="/proc/$pid/ns/uts" '
            '--net="/proc/$pid/ns/net" \\\n'
            "    sh -c 'cd -- \"$0\" && exec \"$@\"' \"$PWD\" \\\n"
            f'    {words} "$@"')

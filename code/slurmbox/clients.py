"""Write the commands that students type: wrappers that enter the cluster and run Slurm's own."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from labcore import rankfiles
from slurmbox import namespaces
from slurmbox.addresses import COMPOSE, ClusterNetwork
from slurmbox.config import put
from slurmbox.install import CLIENTS, Slurm
from slurmbox.layout import Layout
from slurmbox.profile import ClusterProfile

# The supervisor's file descriptor that holds the login node's mount namespace.
LOGIN_MOUNTS = 60

SMI = "nvidia-smi"
NOT_RUNNING = "the cluster is not running: lab cluster up"
NO_CONTROLLER = f"the controller's container is not running; on the host: {COMPOSE} up -d"


def program_folders(layout: Layout) -> list[str]:
    """Return the folders that come first on PATH: our wrappers, then the course's Python."""
    python = str(Path(sys.executable).parent)
    return [str(layout.site_bin if layout.site.exists() else layout.bin), python]


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a shell that uses the cluster, which may be down."""
    layout = Layout(home)
    first = program_folders(layout)
    current = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":")
    if str(layout.notebook_bin) in current:  # in a notebook, whose jobs go through it
        first.insert(0, str(layout.notebook_bin))
    rest = [folder for folder in current if folder not in first and "/.cluster/bin" not in folder]
    values = {"PATH": ":".join([*first, *dict.fromkeys(rest)]), "LAB_HOME": str(home)}
    if not layout.site.exists():
        values["SLURM_CONF"] = str(layout.slurm_conf)
    return values


def full_environment(home: Path) -> dict[str, str]:
    return os.environ | environment(home)


def exports(home: Path) -> str:
    """Return the variables as export commands for `eval` in sh and bash."""
    return "".join(f"export {name}={shlex.quote(value)}\n"
                   for name, value in environment(home).items())


def write_wrappers(layout: Layout, slurm: Slurm, profile: ClusterProfile, network: ClusterNetwork
                   ) -> None:
    put(layout.bin / SMI, smi_wrapper(layout, network), 0o755)
    for name in CLIENTS:
        target = slurm.find(name)
        if target is None:
            (layout.bin / name).unlink(missing_ok=True)
        elif name == "sacct" and not profile.accounting:
            words = shlex.join([sys.executable, "-I", "-m", "slurmbox.sacct"])
            put(layout.bin / name, _wrapper(layout, slurm, name, words, network), 0o755)
        else:
            text = _wrapper(layout, slurm, name, shlex.quote(target), network)
            put(layout.bin / name, text, 0o755)


def write_stubs(layout: Layout) -> None:
    """Write commands that explain what to do until the first `up` replaces them."""
    if not (layout.bin / SMI).exists():
        put(layout.bin / SMI, smi_wrapper(layout, ClusterNetwork("loopback")), 0o755)
    for name in CLIENTS:
        if not (layout.bin / name).exists():
            text = f'#!/bin/sh\necho "{name}: error: {NOT_RUNNING}" >&2\nexit 1\n'
            put(layout.bin / name, text, 0o755)


def _wrapper(layout: Layout, slurm: Slurm, name: str, words: str, network: ClusterNetwork
             ) -> str:
    quoted = shlex.quote(str(layout.state))
    lines = ["#!/bin/sh", f"# {name}, on this workspace's cluster. Written by `lab cluster up`.",
             f"state={quoted}", 'export SLURM_CONF="$state/etc/slurm.conf"']
    if slurm.library_folders:
        extra = shlex.quote(":".join(slurm.library_folders))
        lines.append(f'export LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}"{extra}')
    if network.loopback and slurm.nss_wrapper:
        lines += [f"export LD_PRELOAD={shlex.quote(slurm.nss_wrapper)}",
                  f"export NSS_WRAPPER_HOSTS={layout.short}/etc/hosts"]
    if network.containers:  # the controller's processes are not visible from here
        lines.append(f'[ -e "$state/ready" ] || {{ echo "{name}: error: {NO_CONTROLLER}" >&2; '
                     "exit 1; }")
    else:
        if not network.loopback:
            lines += [f"if read -r inside 2>/dev/null <{namespaces.MARKER} "
                      f'&& [ "$inside" = {layout.run.name} ]; then exec {words} "$@"; fi']
        lines.append(_require_alive(name))
    direct = network.loopback or network.containers
    command = f'exec {words} "$@"' if direct else _on_login_node(words)
    if name == "sbatch":
        command = _with_advice(command)
    elif name in ("srun", "salloc"):
        command = _advised(name, command)
    lines.append(command)
    return "\n".join(lines) + "\n"


def _with_advice(command: str) -> str:
    """Return shell code that runs sbatch and adds advice if Slurm finds the job too large."""
    return (f"exec 3>&1\nerrors=$({command} 2>&1 >&3)\ncode=$?\n"
            'if [ -n "$errors" ]; then printf "%s\\n" "$errors" >&2; fi\n'
            f"case $errors in {_TOO_LARGE})\n"
            f'    {_ADVICE} "$state" sbatch "$@" <&- >&2 ;;\nesac\nexit $code')


def _advised(name: str, command: str) -> str:
    """Return shell code that runs srun or salloc, and adds advice if the request is too large.

    Their standard error is also their job's, so what Slurm says cannot be read: the request is
    compared with the cluster first, if it has an option for a resource. All others replace the
    shell at once, so that signals reach them. In an allocation, srun starts a step of it.
    """
    return ('larger=\nif [ -z "$SLURM_JOB_ID" ]; then\n'
            f"    for word do case $word in {_RESOURCES})\n"
            f'        larger=$({_ADVICE} "$state" {name} "$@" 2>/dev/null <&-)\n'
            "        break ;;\n    esac; done\nfi\n"
            f'if [ -n "$larger" ]; then\n({command})\ncode=$?\n'
            '[ $code = 0 ] || printf "%s\\n" "$larger" >&2\nexit $code\nfi\n' + command)


_ADVICE = shlex.join([sys.executable, "-I", "-m", "lab.larger"])
_RESOURCES = ("-[NncG]*|--nod*|--ntask*|--tasks*|--cpus-per*|--gpus*|--gres|--gres=*|--mem|--mem=*|"
              "--mem-per*|--minc*")
_TOO_LARGE = "|".join(f'*"{words}"*' for words in (
    "Node count", "node configuration", "can not be satisfied", "More processors requested"))


# A real nvidia-smi always comes first. WSL has it in its own folder, which may not be on the PATH.
_REAL_SMI = """\
folders=$PATH:/usr/bin:/usr/lib/wsl/lib
set -f
IFS=:
for folder in $folders; do
    case $folder in */.cluster/bin) continue ;; esac
    [ "$folder/nvidia-smi" -ef "$0" ] && continue  # this wrapper under another path
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

# The shell itself reads /proc, so the whole wrapper takes only a few milliseconds.
_ALIVE = """\
alive() {
    [ -e "$state/ready" ] && read -r pid started 2>/dev/null <"$state/init.pid" || return 1
    read -r line 2>/dev/null <"/proc/$pid/stat" || return 1
    set -- ${line##*) }
    [ "$1" != Z ] && [ "${20}" = "$started" ]
}
alive || { echo "NAME: error: NOT_RUNNING" >&2; exit CODE; }"""


def _require_alive(name: str, code: int = 1) -> str:
    """Return shell code that sets `pid` to the supervisor's, or exits if no cluster runs."""
    return (_ALIVE.replace("NAME", name).replace("NOT_RUNNING", NOT_RUNNING)
            .replace("CODE", str(code)))


def smi_wrapper(layout: Layout, network: ClusterNetwork) -> str:
    """Return the wrapper of nvidia-smi for virtual GPUs.

    It does not enter the cluster, because it needs no Slurm, but it must see the processes under
    their PIDs in the cluster's namespace.
    """
    program = Path(__file__).parents[1] / "job_monitor" / "nvidia_smi" / "__main__.py"
    start = shlex.join([sys.executable, "-I", "-S", str(program)])

    def command(proc: str) -> str:
        return f'exec {start} "$state" {proc} "$@"'

    lines = ["#!/bin/sh", "# nvidia-smi of the virtual GPUs; a real one comes first. "
             "Written by `lab cluster up`.", _REAL_SMI, f"state={shlex.quote(str(layout.state))}"]
    if network.containers:  # outside a job, the processes are in other containers
        return "\n".join([*lines, f'if [ -n "$SLURMD_NODENAME" ]; then {command("/proc")}; fi',
                          command(rankfiles.ELSEWHERE)]) + "\n"
    if not network.loopback:
        lines += [f"if read -r inside 2>/dev/null <{namespaces.MARKER} "
                  f'&& [ "$inside" = {layout.run.name} ]; then {command("/proc")}', "fi"]
    lines.append(_require_alive(SMI, 9))  # the real one's exit code without a driver
    lines.append(command("/proc" if network.loopback else '"/proc/$pid/root/proc"'))
    return "\n".join(lines) + "\n"


def _on_login_node(words: str) -> str:
    """Return shell code that runs a command on the login node, but not in its PID namespace.

    Entering a PID namespace takes a fork, and then a process would sit between the terminal and
    the command.
    """
    user = '--user="/proc/$pid/ns/user" --preserve-credentials ' if os.getuid() else ""
    return (f'exec nsenter {user}--mount="/proc/$pid/fd/{LOGIN_MOUNTS}" --uts="/proc/$pid/ns/uts" '
            '--net="/proc/$pid/ns/net" \\\n'
            "    sh -c 'cd -- \"$0\" && exec \"$@\"' \"$PWD\" \\\n"
            f'    {words} "$@"')

"""Find Slurm on this machine, or install it if that is allowed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from slurmbox import Notify

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge", "libnss-wrapper", "iproute2",
            "util-linux")
ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
NEEDED = ("slurmctld", "slurmd", "slurmstepd", "munged", "sinfo", "squeue", "sbatch", "srun",
          "salloc", "scancel", "scontrol")
CLIENTS = ("sinfo", "squeue", "sbatch", "srun", "salloc", "scancel", "scontrol", "sacct",
           "sacctmgr", "sattach", "sbcast", "scrontab", "sdiag", "sprio", "sreport", "sshare",
           "sstat", "strigger")
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
BUNDLE = CHECKOUT / ".slurm"
UNITS = ("munge", "slurmd", "slurmctld", "slurmdbd", "mariadb")


@dataclass(frozen=True)
class Slurm:
    """Paths of Slurm's programs; `prefix` is set if they were unpacked rather than installed."""

    folders: tuple[str, ...]
    prefix: Path | None = None

    def find(self, program: str) -> str | None:
        return shutil.which(program, path=":".join(self.folders))

    def program(self, name: str) -> str:
        path = self.find(name)
        if path is None:
            raise LabError(f"{name} is not installed: {install_command()}")
        return path

    def missing(self) -> list[str]:
        return [name for name in NEEDED if self.find(name) is None]

    def _under_prefix(self, pattern: str) -> Path | None:
        return next(iter(sorted(self.prefix.glob(pattern))), None) if self.prefix else None

    @cached_property
    def plugin_folder(self) -> Path | None:
        """The folder of Slurm's plugins; None if it is not known."""
        if self.prefix:
            return self._under_prefix("usr/lib/*/slurm-wlm")
        controller = self.find("slurmctld")
        root = Path(controller).resolve().parents[1] if controller else Path("/usr")
        folders = [*root.glob("lib/*/slurm-wlm"), root / "lib64/slurm", root / "lib/slurm"]
        return next((folder for folder in folders if (folder / "mpi_none.so").exists()), None)

    @cached_property
    def unusable_plugins(self) -> frozenset[str]:
        """Plugins for PMIx, whose library is missing: Slurm lists them, and cannot load them."""
        found = self.plugin_folder.glob("mpi_pmix*.so") if self.plugin_folder else ()
        return frozenset(plugin.name for plugin in found if not _opens_library(plugin))

    @property
    def replaces_plugins(self) -> bool:
        """True if Slurm's default folder of plugins is not the right one."""
        return bool(self.plugin_folder and (self.prefix or self.unusable_plugins))

    @property
    def library_folders(self) -> list[str]:
        if self.prefix is None or self.plugin_folder is None:
            return []
        return [str(self.plugin_folder.parent), str(self.plugin_folder)]

    @property
    def nss_wrapper(self) -> str | None:
        """The library that resolves node names without /etc/hosts."""
        folders = self.library_folders + [str(path) for path in Path("/usr/lib").glob("*-linux-*")]
        folders += ["/usr/lib64", "/usr/lib"]
        libraries = (Path(folder) / "libnss_wrapper.so" for folder in folders)
        return next((str(path) for path in libraries if path.exists()), None)

    def version(self) -> tuple[int, int]:
        """Return (major, minor) version numbers; (0, 0) if they cannot be read."""
        environment = os.environ | {"LD_LIBRARY_PATH": ":".join(self.library_folders)}
        out = subprocess.run([self.program("sinfo"), "--version"], capture_output=True, text=True,
                             env=environment).stdout
        numbers = out.replace("-", " ").split()[-1:] or ["0.0"]
        parts = [*numbers[0].split("."), "0"][:2]
        return tuple(int(part) if part.isdigit() else 0 for part in parts)  # type: ignore


def locate() -> Slurm | None:
    """Return Slurm if it is installed or unpacked, or None."""
    wrappers = {path for path in os.environ.get("PATH", "").split(":") if "/.cluster/" in path}
    on_path = [path for path in os.environ.get("PATH", "").split(":") if path not in wrappers]
    if not os.environ.get("LAB_SLURM_UNPACKED"):  # tests set this to hide an installed Slurm
        installed = Slurm(tuple(dict.fromkeys((*SYSTEM_FOLDERS, *on_path))))
        if not installed.missing():
            return installed
    prefix = Path(os.environ.get("LAB_SLURM_PREFIX") or BUNDLE)
    if prefix.is_dir():
        folders = (f"{prefix}/usr/sbin", f"{prefix}/usr/bin", *SYSTEM_FOLDERS)
        unpacked = Slurm(folders, prefix)
        if not unpacked.missing():
            return unpacked
    return None


def require_slurm() -> Slurm:
    slurm = locate()
    if slurm is None:
        raise LabError(f"Slurm is not installed on this machine. {how_to_install()}")
    return slurm


def _opens_library(plugin: Path) -> bool:
    """Return whether the PMIx library that a plugin opens by its name is there, or unknown."""
    names = set(re.findall(rb"libpmix\.so[.\d]*", plugin.read_bytes()))
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name.decode())
            return True
    return not names


def install_command(packages: tuple[str, ...] = PACKAGES) -> str:
    sudo = "" if os.getuid() == 0 else "sudo "
    return f"{sudo}apt-get install -y --no-install-recommends {' '.join(packages)}"


def how_to_install() -> str:
    if sys.platform != "linux":
        return (f"Slurm does not run on {sys.platform}: use the container (docker/), or a Linux "
                "machine (on Windows: WSL 2)")
    if shutil.which("apt-get"):
        return f"Install it: {install_command()}; or use the container (docker/)"
    for tool, command in (("dnf", "dnf install -y slurm slurm-slurmctld slurm-slurmd munge"),
                          ("zypper", "zypper install -y slurm slurm-node slurm-munge munge"),
                          ("pacman", "pacman -S slurm-llnl munge")):
        if shutil.which(tool):
            return f"Install it: sudo {command}; or use the container (docker/)"
    return "Install Slurm and munge with this system's package tool, or use the container (docker/)"


def ensure_slurm(notify: Notify = print) -> Slurm:
    """Return Slurm, installing it first if it is missing. Raises LabError that says what to do."""
    slurm = locate()
    if slurm:
        return slurm
    if sys.platform == "linux" and shutil.which("apt-get"):
        if not os.environ.get("LAB_SLURM_UNPACKED") and _become_root() is not None:
            _apt_install(PACKAGES, notify)
        else:
            from slurmbox import bundle

            bundle.unpack(Path(os.environ.get("LAB_SLURM_PREFIX") or BUNDLE), PACKAGES, notify)
    return require_slurm()


def _become_root() -> list[str] | None:
    """Return the words that run a command as root, or None if that needs a password."""
    if os.getuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(
            ["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def install_packages(packages: tuple[str, ...], notify: Notify = print) -> bool:
    """Install Debian packages. Returns False if this user may not. Raises LabError on failure."""
    if not shutil.which("apt-get") or _become_root() is None:
        return False
    _apt_install(packages, notify)
    return True


def install_accounting(notify: Notify = print) -> bool:
    """Install the packages of `up --accounting`. Returns False if this user may not."""
    return install_packages(ACCOUNTING_PACKAGES, notify)


def _apt_install(packages: tuple[str, ...], notify: Notify) -> None:
    root = _become_root() or []
    notify("running " + install_command(packages))
    environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
    before = {unit for unit in UNITS if _unit_exists(unit)}
    steps = ([*root, *environment, "apt-get", "update"],
             [*root, *environment, "apt-get", "install", "-y", "--no-install-recommends",
              *packages])
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode and step is steps[-1]:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])
            raise LabError(f"{' '.join(step)} failed:\n{tail}")
    # The packages start services, which this course does not use.
    fresh = [unit for unit in UNITS if unit not in before]
    if fresh and Path("/run/systemd/system").is_dir():
        subprocess.run([*root, "systemctl", "disable", "--now", *fresh], capture_output=True)


def _unit_exists(unit: str) -> bool:
    return any(Path(folder, f"{unit}.service").exists()
               for folder in ("/lib/systemd/system", "/etc/systemd/system"))

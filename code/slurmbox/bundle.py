"""Unpack the distribution's Slurm packages into a folder of the checkout, without root.

Debian and Ubuntu only. apt uses its own lists and cache, because the system's lists may be empty
(in many containers), and its lock needs root.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from labcore.errors import LabError
from slurmbox import Notify

# The programs have this suffix; the distribution's alternatives link to them.
SUFFIX = "-wlm"


def unpack(prefix: Path, packages: tuple[str, ...], notify: Notify) -> None:
    """Fill `prefix` completely or not at all.

    Args:
        prefix: the folder.
        packages: names of Debian packages.
        notify: receives lines about the progress.

    Raises:
        LabError: apt or dpkg is missing or fails, or the folder is not writable.
    """
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise LabError(f"unpacking Slurm needs {tool}, which this system does not have")
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        lock = open(prefix.parent / f"{prefix.name}.lock", "w")  # noqa: SIM115
    except OSError as error:
        raise LabError(f"Slurm cannot be unpacked into {prefix} ({error.strerror}): set "
                       "LAB_SLURM_PREFIX to a folder of your own") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (prefix / "complete").exists():
            return
        for stale in prefix.parent.glob(f"{prefix.name}.new-*"):
            shutil.rmtree(stale, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{prefix.name}.new-", dir=prefix.parent))
        try:
            _fill(fresh, packages, notify)
            (fresh / "complete").touch()
            fresh.chmod(0o755)
            shutil.rmtree(prefix, ignore_errors=True)
            fresh.rename(prefix)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
            Path(lock.name).unlink(missing_ok=True)


def _fill(folder: Path, packages: tuple[str, ...], notify: Notify) -> None:
    cache = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (cache / name).mkdir(parents=True)
    notify("Slurm is not installed, and installing it needs an administrator: unpacking a private "
           "copy")
    notify("  reading the distribution's package lists")
    _apt(cache, "update")
    names = _missing(cache, packages)
    notify(f"  fetching {len(names)} packages")
    _apt(cache, "download", *names, cwd=cache / "archives")
    for archive in sorted((cache / "archives").glob("*.deb")):
        _run(["dpkg", "-x", str(archive), str(folder)])
    shutil.rmtree(cache)
    for suffixed in (*folder.glob(f"usr/sbin/*{SUFFIX}"), *folder.glob(f"usr/bin/*{SUFFIX}")):
        plain = suffixed.with_name(suffixed.name.removesuffix(SUFFIX))
        if not plain.exists():
            plain.symlink_to(suffixed.name)


def _options(cache: Path) -> list[str]:
    return ["-o", f"Dir::State::lists={cache}/lists", "-o", f"Dir::Cache={cache}",
            "-o", f"Dir::Cache::archives={cache}/archives", "-o", "Debug::NoLocking=1",
            "-o", "APT::Sandbox::User="]


def _apt(cache: Path, *words: str, cwd: Path | None = None) -> str:
    return _run(["apt-get", "-q", *_options(cache), *words], cwd)


def _missing(cache: Path, packages: tuple[str, ...]) -> list[str]:
    """Return the packages that apt would install; all of them if Slurm is installed but hidden."""
    plan = _apt(cache, "install", "--simulate", "--no-install-recommends", *packages)
    names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    if os.environ.get("LAB_SLURM_UNPACKED"):
        names = sorted({*names, *packages[:5], "slurm-wlm-basic-plugins", "libmunge2"})
    return names


def _run(command: list[str], cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True,
                          env=os.environ | {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"})
    if done.returncode:
        tail = " / ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise LabError(f"{command[0]} failed while unpacking Slurm: {tail}; an administrator can "
                       "install it instead, or use the container (docker/)")
    return done.stdout

"""Paths of a cluster's files: `$LAB_HOME/.cluster`, and a short private folder for sockets."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labcore.atomic import put_link
from labcore.errors import LabError
from labcore.workspace import require_writable

# The workspace's path becomes part of PATH and of one-line files.
FORBIDDEN = ":\n\r"


@dataclass(frozen=True)
class Layout:
    """The paths of one workspace's cluster. Making one touches no file."""

    home: Path

    @property
    def state(self) -> Path:
        return self.home / ".cluster"

    @property
    def bin(self) -> Path:
        return self.state / "bin"

    @property
    def site_bin(self) -> Path:
        return self.state / "bin-site"

    @property
    def slurm_conf(self) -> Path:
        return self.state / "etc" / "slurm.conf"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def record(self) -> Path:
        """Record of the running cluster: written by `up`, removed by a clean `down`."""
        return self.state / "running.json"

    @property
    def init_pid(self) -> Path:
        """`PID STARTTIME` of the supervisor, in a form that sh can read."""
        return self.state / "init.pid"

    @property
    def ready(self) -> Path:
        """Exists while the controller answers: the wrappers look at it before they call Slurm."""
        return self.state / "ready"

    @property
    def ranks(self) -> Path:
        """A folder for each job, in which its ranks say what they do now."""
        return self.state / "ranks"

    @property
    def job_records(self) -> Path:
        return self.state / "log" / "jobcomp.txt"

    @property
    def site(self) -> Path:
        """Exists where the workspace uses the site's own Slurm."""
        return self.state / "use-site"

    @property
    def _run_link(self) -> Path:
        return self.state / "run"

    def log(self, name: str) -> Path:
        return self.state / "log" / f"{name}.log"

    @property
    def run(self) -> Path:
        """The short private folder; made by `prepare_run`."""
        try:
            return Path(os.readlink(self._run_link))
        except OSError:
            return self._run_link

    @property
    def short(self) -> Path:
        """`.cluster` by a short name without blanks: what Slurm's files and sockets use."""
        return self.run / "cluster"

    @property
    def control_socket(self) -> Path:
        return self.run / "control"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge"

    def prepare(self) -> None:
        """Make the folders under the workspace, or raise LabError."""
        bad = [character for character in str(self.home) if character in FORBIDDEN]
        if bad:
            raise LabError(
                f"the workspace {str(self.home)!r} has {bad[0]!r} in its path, which cannot be "
                "part of PATH: set LAB_HOME to a path without it"
            )
        require_writable(self.home)
        for name in ("bin", "etc", "sbin", "state", "log", "spool"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)

    def prepare_run(self) -> None:
        """Make the runtime folder, unless there is one that may be used."""
        if not self.run_is_ours():
            self._make_run()

    def adopt_run(self, run: Path) -> None:
        """Make the runtime folder where another container of this cluster has its own."""
        run.mkdir(0o700, exist_ok=True)
        put_link(run / "cluster", self.state)
        if self.run != run:
            put_link(self._run_link, run)

    def run_is_ours(self) -> bool:
        """A folder of this user, closed to others, that belongs to this very workspace."""
        try:
            about = os.lstat(self.run)
            belongs = os.readlink(self.short)
        except OSError:
            return False
        private = stat.S_ISDIR(about.st_mode) and not about.st_mode & 0o077
        return private and about.st_uid == os.getuid() and belongs == str(self.state)

    def _make_run(self) -> None:
        # Unix socket paths end at 107 bytes, so not under the workspace, and not under $TMPDIR.
        parent = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()
        run = Path(tempfile.mkdtemp(prefix="lab-", dir=parent))
        (run / "cluster").symlink_to(self.state)
        with contextlib.suppress(FileNotFoundError):
            self._run_link.unlink()
        self._run_link.symlink_to(run)

    def remove_run(self) -> None:
        """Take the runtime folder away, once nothing runs."""
        if not self.run_is_ours():
            return
        run = self.run
        for entry in run.iterdir():
            with contextlib.suppress(OSError):
                entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        with contextlib.suppress(OSError):
            run.rmdir()
            self._run_link.unlink()

"""Name the paths of a cluster's files: `$LAB_HOME/.cluster`, and a private folder for sockets."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from labcore.atomic import replace_link
from labcore.errors import LabError
from labcore.workspace import require_writable

# The workspace's path becomes part of PATH and of one-line files.
FORBIDDEN = ":\n\r"


@dataclass(frozen=True)
class Layout:
    """The paths of one workspace's cluster. Creating this object touches no file."""

    home: Path

    @property
    def state(self) -> Path:
        return self.home / ".cluster"

    @property
    def bin(self) -> Path:
        return self.state / "bin"

    @property
    def notebook_bin(self) -> Path:
        """The folder of the `sbatch` that notebooks call, which remembers their jobs."""
        return self.state / "notebook"

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
        """The record of the running cluster, written by `up` and removed by a clean `down`."""
        return self.state / "running.json"

    @property
    def init_pid(self) -> Path:
        """The supervisor's `PID STARTTIME`, in a form that sh can read."""
        return self.state / "init.pid"

    @property
    def ready(self) -> Path:
        """Exists while the controller can answer; the wrappers check it before they call Slurm."""
        return self.state / "ready"

    @property
    def ranks(self) -> Path:
        """Has a folder for each job, in which its ranks write their status."""
        return self.state / "ranks"

    @property
    def job_records(self) -> Path:
        return self.state / "log" / "jobcomp.txt"

    @property
    def site(self) -> Path:
        """Exists if the workspace uses the site's own Slurm."""
        return self.state / "use-site"

    @property
    def _run_link(self) -> Path:
        return self.state / "run"

    def log(self, name: str) -> Path:
        return self.state / "log" / f"{name}.log"

    @property
    def run(self) -> Path:
        """The private folder with a short path, which `prepare_run` creates."""
        try:
            return Path(os.readlink(self._run_link))
        except OSError:
            return self._run_link

    @property
    def short(self) -> Path:
        """`.cluster` under a short path without spaces, for Slurm's files and sockets."""
        return self.run / "cluster"

    @property
    def control_socket(self) -> Path:
        return self.run / "control"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge"

    def prepare(self) -> None:
        """Create the folders in the workspace. Raises LabError."""
        bad = [character for character in str(self.home) if character in FORBIDDEN]
        if bad:
            raise LabError(
                f"the workspace {str(self.home)!r} has {bad[0]!r} in its path, which PATH cannot "
                "contain: set LAB_HOME to a path without it"
            )
        require_writable(self.home)
        for name in ("bin", "etc", "sbin", "state", "log", "spool"):
            (self.state / name).mkdir(parents=True, exist_ok=True)
        self.state.chmod(0o700)

    def prepare_run(self) -> None:
        """Create the runtime folder, unless it exists and is usable."""
        if not self.run_is_ours():
            self._make_run()

    def adopt_run(self, run: Path) -> None:
        """Use a runtime folder at a given path, which every container of a cluster creates."""
        run.mkdir(0o700, exist_ok=True)
        replace_link(run / "cluster", self.state)
        if self.run != run:
            replace_link(self._run_link, run)

    def run_is_ours(self) -> bool:
        """Return whether the runtime folder is this user's, private, and of this workspace."""
        try:
            status = os.lstat(self.run)
            target = os.readlink(self.short)
        except OSError:
            return False
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
        return private and status.st_uid == os.getuid() and target == str(self.state)

    def _make_run(self) -> None:
        # A Unix socket's path has at most 107 bytes: it cannot be under the workspace or $TMPDIR.
        parent = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()
        run = Path(tempfile.mkdtemp(prefix="lab-", dir=parent))
        (run / "cluster").symlink_to(self.state)
        with contextlib.suppress(FileNotFoundError):
            self._run_link.unlink()
        self._run_link.symlink_to(run)

    def remove_run(self) -> None:
        """Remove the runtime folder, once no daemon runs."""
        if not self.run_is_ours():
            return
        run = self.run
        for entry in run.iterdir():
            with contextlib.suppress(OSError):
                entry.rmdir() if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        with contextlib.suppress(OSError):
            run.rmdir()
            self._run_link.unlink()

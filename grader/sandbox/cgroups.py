"""Create a kernel control group for each sandbox, if this process is allowed to."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from grader.sandbox.interface import Limits

MOUNT = Path("/sys/fs/cgroup")
PREFIX = "lab-sandbox"
# In the group beside the sandbox's own: sh, bwrap and its helper inside.
HELPERS = 4
ENTRY_SECONDS = 60.0  # seconds in which a group may be empty because its sandbox is about to enter


@dataclass(frozen=True)
class ControlGroup:
    """The folders of one sandbox's group: one in version 2, one per controller in version 1."""

    memory: Path
    folders: tuple[Path, ...]
    version: int

    @property
    def enter_files(self) -> list[str]:
        """The files to which a process writes its pid to enter the group."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def used(self) -> int:
        """Return the memory in use, in bytes, without cached files, which the kernel drops under
        pressure."""
        name, cached = (("memory.current", ("inactive_file", "active_file")) if self.version == 2
                        else ("memory.usage_in_bytes", ("total_inactive_file",
                                                        "total_active_file")))
        total = _number(self.memory / name)
        return total - sum(_field(self.memory / "memory.stat", field) for field in cached)

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel has killed one of its processes for lack of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _field(self.memory / name, "oom_kill") > 0

    def remove(self) -> None:
        """Remove the group after its last process; a killed one may take a moment to leave."""
        for folder in self.folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY:
                        break
                    time.sleep(0.01)


def of_process(pid: int, mount: Path = MOUNT) -> ControlGroup | None:
    """Return the group that a container engine made for a process; None if it has none.

    Args:
        pid: the process.
        mount: the file system of control groups.
    """
    groups, own = _memberships(pid), _memberships()
    controller = "memory" if "memory" in groups else ""
    path = groups.get(controller, "/")
    base = mount / controller
    if not controller and (mount / "unified").is_dir():
        base = mount / "unified"
    folder = base / path.lstrip("/")
    limit = folder / ("memory.limit_in_bytes" if controller else "memory.max")
    if path == own.get(controller) or not limit.exists():
        return None
    return ControlGroup(folder, (), 1 if controller else 2)


def make(limits: Limits, mount: Path = MOUNT) -> ControlGroup | None:
    """Create a group with limits on memory and processes; None if that is not allowed.

    Groups also share the processors fairly, no matter how many processes one of them starts.

    Args:
        limits: the sandbox's limits.
        mount: the file system of control groups.
    """
    # A grader in another PID namespace, as on a node of a cluster, may have the same number.
    name = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(4)}"
    memberships = _memberships()
    with contextlib.suppress(OSError):
        if "memory" in memberships:
            return _make_1(limits, mount, name, memberships)
        if "" in memberships:
            return _make_2(limits, mount, name, memberships[""])
    return None


def _make_1(limits: Limits, mount: Path, name: str, memberships: dict[str, str]) -> ControlGroup:
    made = []
    try:
        memory = _below(mount / "memory", memberships["memory"], name)
        made.append(memory)
        (memory / "memory.limit_in_bytes").write_text(kernel_memory_limit(limits))
        with contextlib.suppress(OSError):  # a kernel without swap accounting
            (memory / "memory.memsw.limit_in_bytes").write_text(kernel_memory_limit(limits))
        for controller in {"pids", "cpu"} & set(memberships):  # cpu: equal shares, nothing to set
            with contextlib.suppress(OSError):
                made.append(_below(mount / controller, memberships[controller], name))
                if controller == "pids":
                    (made[-1] / "pids.max").write_text(str(limits.processes + HELPERS))
    except OSError:
        ControlGroup(Path(), tuple(made), 1).remove()
        raise
    return ControlGroup(memory, tuple(made), 1)


def _make_2(limits: Limits, mount: Path, name: str, own: str) -> ControlGroup:
    unified = mount / "unified" if (mount / "unified").is_dir() else mount
    above = unified / own.lstrip("/")
    if not _counts_memory(above):
        for controller in ("+memory", "+pids", "+cpu"):
            with contextlib.suppress(OSError):  # refused where processes are in it, as ours is
                (above / "cgroup.subtree_control").write_text(controller)
    if not _counts_memory(above):
        # A desktop's slice is its user's own. Never out of a group that limits this process.
        if (above / "memory.max").read_text().strip() != "max":
            raise PermissionError(f"{above} limits memory")
        above = above.parent
        if not _counts_memory(above):
            raise PermissionError(f"{above} has no memory controller for its groups")
    folder = above / name
    folder.mkdir()
    group = ControlGroup(folder, (folder,), 2)
    try:
        (folder / "memory.max").write_text(kernel_memory_limit(limits))
        (folder / "memory.oom.group").write_text("1")
        with contextlib.suppress(OSError):
            (folder / "memory.swap.max").write_text("0")
        with contextlib.suppress(OSError):
            (folder / "pids.max").write_text(str(limits.processes + HELPERS))
        if not os.access(above / "cgroup.procs", os.W_OK):  # entering needs the way out, too
            raise PermissionError(f"{above} is not ours")
    except OSError:
        group.remove()
        raise
    return group


def _counts_memory(folder: Path) -> bool:
    """Return whether groups created in it have a memory controller."""
    return "memory" in (folder / "cgroup.subtree_control").read_text().split()


def _below(controller: Path, own: str, name: str) -> Path:
    folder = controller / own.lstrip("/") / name
    folder.mkdir()
    return folder


def _memberships(pid: int | str = "self") -> dict[str, str]:
    """Return a process's group by controller; "" stands for version 2."""
    groups = {}
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            groups |= dict.fromkeys(controllers.split(","), path)
    return groups


def kernel_memory_limit(limits: Limits) -> str:
    """Return the kernel's limit in bytes.

    The watchdog ends the sandbox earlier, because the kernel tries to free memory for seconds.
    """
    return str(limits.memory * 9 // 8)


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _field(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0


def sweep(mount: Path = MOUNT) -> None:
    """Remove empty groups that a killed grader left behind."""
    memberships = _memberships()
    for controller, own in memberships.items():
        if controller not in ("memory", "pids", "cpu", ""):
            continue
        base = mount / (controller or "unified")
        base = base if base.is_dir() else mount
        for above in (base / own.lstrip("/"), (base / own.lstrip("/")).parent):
            for folder in above.glob(f"{PREFIX}-*"):
                owner = folder.name.split("-")[2]
                with contextlib.suppress(OSError):  # gone by now, still in use, or not ours
                    old = time.time() - folder.stat().st_mtime > ENTRY_SECONDS
                    if old and not Path("/proc", owner).exists():
                        folder.rmdir()

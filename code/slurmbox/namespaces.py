"""Create nodes from namespaces: each has its own network, host name, and mounts, behind a bridge.

The supervisor's own namespaces are the login node. All names exist only inside, and nothing on the
host changes, so any number of clusters can use the same addresses at the same time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurmbox import syscalls as sys_
from slurmbox.profile import ClusterProfile, bits_per_second

NETWORK = "10.77.0"
LOGIN_ADDRESS = f"{NETWORK}.1"
INTERFACE = "eth0"  # on every node; on the login node, it is the bridge
MARKER = "/.lab-cluster"  # a file that names the cluster in whose namespaces it is visible
TOOL_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def address(index: int) -> str:
    """Return the IP address of a node; the first node has index 0."""
    return f"{NETWORK}.{11 + index}"


def enter_new(user: bool) -> None:
    """Leave the host's namespaces; the caller's next child becomes PID 1."""
    uid, gid = os.getuid(), os.getgid()
    flags = (sys_.CLONE_NEWNS | sys_.CLONE_NEWUTS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET)
    sys_.unshare(flags | (sys_.CLONE_NEWUSER if user else 0))
    if user:  # the user keeps their own name inside, with all rights over the new namespaces
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def build_root(scratch: Path, home: Path, hosts: Path, identity: str) -> None:
    """Change to a new root that looks like the host's, except for /dli and host names.

    The root is a tmpfs with every top-level entry bound into it. This works without root, too, and
    a process that enters the mount namespace sees it.

    Args:
        scratch: an empty folder for the new root.
        home: the workspace.
        hosts: the new /etc/hosts.
        identity: the cluster's name, which is written to MARKER.
    """
    sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_SLAVE)  # host mounts propagate in, not out
    scratch.mkdir(exist_ok=True)
    sys_.mount("tmpfs", str(scratch), "tmpfs", sys_.MS_NOSUID | sys_.MS_NODEV, "mode=755,size=1m")
    dli_is_real = home.resolve().is_relative_to("/dli")
    for entry in sorted(os.scandir("/"), key=lambda entry: entry.name):
        if entry.name != "dli" or dli_is_real:
            _bind_entry(entry, scratch / entry.name)
    if not dli_is_real:
        (scratch / "dli").symlink_to(home)
    Path(f"{scratch}{MARKER}").write_text(identity + "\n")
    os.chdir(scratch)
    sys_.pivot_root(".", ".")
    sys_.umount_lazily(".")
    os.chdir("/")
    sys_.mount(str(hosts), "/etc/hosts", None, sys_.MS_BIND)


def _bind_entry(entry: os.DirEntry, target: Path) -> None:
    if f"/{entry.name}" == MARKER:
        return
    if entry.is_symlink():
        target.symlink_to(os.readlink(entry.path))
        return
    if entry.is_dir():
        target.mkdir()
    elif stat.S_ISREG(entry.stat().st_mode):
        target.touch()
    else:
        return
    # A folder that cannot be bound, such as a stale network mount, must not stop the cluster.
    with contextlib.suppress(OSError):
        sys_.mount(entry.path, str(target), None, sys_.MS_BIND | sys_.MS_REC)


def mount_proc() -> None:
    """Show this PID namespace's processes in /proc, where Slurm looks for a job's processes."""
    flags = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    sys_.mount("proc", "/proc", "proc", flags)


def run_tool(program: str, *arguments: str, text: str | None = None) -> None:
    """Run `ip` or `tc` with the capabilities that change our namespaces. Raises OSError."""
    def keep() -> None:
        if os.getuid():
            sys_.keep_capabilities(sys_.CAP_NET_ADMIN, sys_.CAP_SYS_ADMIN)

    done = subprocess.run([program, *arguments], input=text, text=True, capture_output=True,
                          preexec_fn=keep, env={"PATH": TOOL_PATH, "LC_ALL": "C"})
    if done.returncode:
        words = " ".join([program, *arguments])
        raise OSError(f"{words}: {done.stderr.strip() or f'exit code {done.returncode}'}")


def set_up_login() -> None:
    sys_.sethostname("login")
    run_tool("ip", "-batch", "-", text="\n".join((
        "link set lo up",
        f"link add {INTERFACE} type bridge forward_delay 0",
        f"addr add {LOGIN_ADDRESS}/24 dev {INTERFACE}",
        f"link set {INTERFACE} up")))


def shape(device: str, rate: str) -> None:
    """Set the rate at which a network device sends. Raises OSError if that is not allowed."""
    if rate == "unlimited":
        with contextlib.suppress(OSError):  # there may be nothing to delete
            run_tool("tc", "qdisc", "del", "dev", device, "root")
        return
    burst = max(256 * 1024, bits_per_second(rate) // 8 // 5000)  # 0.2 ms of the rate
    run_tool("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
             "burst", str(burst), "latency", "50ms")


@dataclass
class NodeNamespaces:
    """The namespaces of one node, which the supervisor's descriptors keep alive."""

    name: str
    index: int
    descriptors: tuple[int, ...]  # net, uts, mnt
    cut: bool = False

    @property
    def cable(self) -> str:
        """The login node's end of the node's network link."""
        return f"node{self.index + 1}"

    @property
    def address(self) -> str:
        return address(self.index)

    def enter(self) -> None:
        """Move the calling process to this node; for a child between fork and exec."""
        for descriptor in self.descriptors:
            sys_.setns(descriptor)

    def set_cut(self, cut: bool) -> None:
        run_tool("ip", "link", "set", self.cable, "down" if cut else "up")
        self.cut = cut

    def set_rate(self, rate: str) -> None:
        """Limit what the node receives, since every transfer to it passes here exactly once."""
        shape(self.cable, rate)


def make_node(name: str, index: int) -> NodeNamespaces:
    """Create a node. Its namespaces exist as long as the descriptors are open. Raises OSError."""
    created, done = os.pipe(), os.pipe()

    def hold() -> None:
        sys_.unshare(sys_.CLONE_NEWNET | sys_.CLONE_NEWUTS | sys_.CLONE_NEWNS)
        sys_.sethostname(name)
        os.close(done[1])
        os.write(created[1], b"+")
        os.read(done[0], 1)

    child = _fork(hold)
    os.close(created[1])
    try:
        if not os.read(created[0], 1):
            raise OSError(f"no namespaces for {name}")
        descriptors = tuple(os.open(f"/proc/{child}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                            for kind in ("net", "uts", "mnt"))
        space = NodeNamespaces(name, index, descriptors)
        run_tool("ip", "link", "add", space.cable, "type", "veth", "peer", "name", INTERFACE,
                 "netns", str(child))
    finally:
        for descriptor in (created[0], *done):
            os.close(descriptor)
        os.waitpid(child, 0)
    _configure(space)
    return space


def _configure(space: NodeNamespaces) -> None:
    run_tool("ip", "link", "set", space.cable, "master", INTERFACE, "up")

    def inside() -> None:
        space.enter()
        run_tool("ip", "-batch", "-", text="\n".join((
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",  # no IPv6 address for gloo to pick
            f"addr add {space.address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up")))

    if os.waitpid(_fork(inside), 0)[1]:
        raise OSError(f"the network of {space.name} could not be set up")


def _fork(work: Callable[[], None]) -> int:
    """Run `work` in a child process, and return its PID to the parent."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except OSError as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def make_nodes(profile: ClusterProfile) -> dict[str, NodeNamespaces]:
    return {name: make_node(name, index) for index, name in enumerate(profile.node_names)}

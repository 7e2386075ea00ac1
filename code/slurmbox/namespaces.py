"""Nodes out of nothing: each a network, host name and mount namespace behind one bridge.

The supervisor's own namespaces are the login node. All names live inside; nothing on the host
changes, so that any number of clusters use the same addresses side by side.
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
from slurmbox.profile import Profile, bits_per_second

NETWORK = "10.77.0"
LOGIN_ADDRESS = f"{NETWORK}.1"
INTERFACE = "eth0"  # on every node and on the login node, where it is the bridge itself
MARKER = "/.lab-cluster"  # names the cluster whose namespaces one is in
TOOL_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def address(index: int) -> str:
    """Return the IP address of a node; the first node has index 0."""
    return f"{NETWORK}.{11 + index}"


def enter_new(user: bool) -> None:
    """Leave the host's namespaces; the caller's next child is PID 1."""
    uid, gid = os.getuid(), os.getgid()
    flags = (sys_.CLONE_NEWNS | sys_.CLONE_NEWUTS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET)
    sys_.unshare(flags | (sys_.CLONE_NEWUSER if user else 0))
    if user:  # the user keeps the own name inside, and full rights over the new namespaces
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def build_root(scratch: Path, home: Path, hosts: Path, identity: str) -> None:
    """Change to a root of our own that looks like the host's, except for /dli and host names.

    A tmpfs with every top-level entry bound into it: this works for an ordinary user too, and a
    process that enters the mount namespace lands in it.
    """
    sys_.mount("none", "/", None, sys_.MS_REC | sys_.MS_SLAVE)  # host mounts come in, none go out
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
    # One folder that cannot be bound (a stale network mount) must not cost the cluster.
    with contextlib.suppress(OSError):
        sys_.mount(entry.path, str(target), None, sys_.MS_BIND | sys_.MS_REC)


def mount_proc() -> None:
    """Show this PID namespace's processes in /proc: Slurm finds a job's processes there."""
    flags = sys_.MS_NOSUID | sys_.MS_NODEV | sys_.MS_NOEXEC
    sys_.mount("proc", "/proc", "proc", flags)


def run_tool(program: str, *arguments: str, text: str | None = None) -> None:
    """Run `ip` or `tc` with the rights over our namespaces."""
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
    """The rate at which a network device sends. Raises OSError where that is not allowed."""
    if rate == "unlimited":
        with contextlib.suppress(OSError):  # none there to delete
            run_tool("tc", "qdisc", "del", "dev", device, "root")
        return
    burst = max(256 * 1024, bits_per_second(rate) // 8 // 5000)  # 0.2 ms of the rate
    run_tool("tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
             "burst", str(burst), "latency", "50ms")


@dataclass
class NodeSpace:
    """The namespaces of one node, held open by the supervisor's descriptors."""

    name: str
    index: int
    descriptors: tuple[int, ...]  # net, uts, mnt
    cut: bool = False

    @property
    def cable(self) -> str:
        """The login side's end of the node's network cable."""
        return f"node{self.index + 1}"

    @property
    def address(self) -> str:
        return address(self.index)

    def enter(self) -> None:
        """For a child between fork and exec: be on this node from here on."""
        for descriptor in self.descriptors:
            sys_.setns(descriptor)

    def set_cut(self, cut: bool) -> None:
        run_tool("ip", "link", "set", self.cable, "down" if cut else "up")
        self.cut = cut

    def set_rate(self, rate: str) -> None:
        """Shape what the node receives: every transfer between two nodes passes here once."""
        shape(self.cable, rate)


def make_node(name: str, index: int) -> NodeSpace:
    """A node whose namespaces stay as long as the descriptors are open."""
    made, go_on = os.pipe(), os.pipe()

    def hold() -> None:
        sys_.unshare(sys_.CLONE_NEWNET | sys_.CLONE_NEWUTS | sys_.CLONE_NEWNS)
        sys_.sethostname(name)
        os.close(go_on[1])
        os.write(made[1], b"+")
        os.read(go_on[0], 1)

    child = _fork(hold)
    os.close(made[1])
    try:
        if not os.read(made[0], 1):
            raise OSError(f"no namespaces for {name}")
        descriptors = tuple(os.open(f"/proc/{child}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
                            for kind in ("net", "uts", "mnt"))
        space = NodeSpace(name, index, descriptors)
        run_tool("ip", "link", "add", space.cable, "type", "veth", "peer", "name", INTERFACE,
                 "netns", str(child))
    finally:
        for descriptor in (made[0], *go_on):
            os.close(descriptor)
        os.waitpid(child, 0)
    _configure(space)
    return space


def _configure(space: NodeSpace) -> None:
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
    """Run `work` in a child, which never returns from here."""
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


def make_nodes(profile: Profile) -> dict[str, NodeSpace]:
    return {name: make_node(name, index) for index, name in enumerate(profile.node_names)}

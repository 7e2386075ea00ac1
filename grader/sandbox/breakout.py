"""Runs INSIDE a sandbox and tries to break out; prints what it reached, as JSON.

`grader.sandbox.selftest` sends it in as text: it uses the standard library only, and needs none of
the grader's files. Each attempt returns what it reached, in words, or None.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import sys
import time

TASK = json.loads(sys.argv[1])
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUSER, PTRACE_ATTACH = 0x10000000, 16
GET_KEYRING, USER_KEYRING = 0, -4
OPEN_FILE_LOCK = 36  # F_OFD_GETLK, which Python 3.11 has no name for
KEYCTL = {"x86_64": 250}.get(os.uname().machine, 219)


def network():
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    for address, port in TASK["listeners"]:
        with socket.socket() as connection:
            connection.settimeout(0.3)
            with contextlib.suppress(OSError):
                connection.connect((address, port))
                return f"a port of the host ({address})"
    with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as connection:
        connection.connect(("192.0.2.1", 53))  # sends nothing: asks for a route
        return "a route into the network"
    return f"the network interface {others[0]}" if others and routed(others) else None


def routed(names):
    """Return whether one of the interfaces is up; the kernel's own tunnels never are."""
    with contextlib.suppress(OSError), open("/proc/net/route") as file:
        return any(line.split()[0] in names for line in file)
    return False


def abstract_socket():
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect("\0" + TASK["abstract"])
        return "a socket of another program on the host"


def machine_socket():
    with contextlib.suppress(OSError, AttributeError):
        socket.socket(socket.AF_VSOCK).close()
        return "sockets to the machine's host (AF_VSOCK)"


def reading():
    for what, path in TASK["secrets"]:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            file.read(1)
            return f"{what} ({path})"


def writing():
    for folder in TASK["closed"]:
        path = os.path.join(folder, "written-by-the-sandbox-test")
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL))
            os.unlink(path)
            return f"writing into {folder}"


def environment():
    for name in os.environ:
        if name not in TASK["variables"]:
            return f"the grader's variable {name}"


def descriptors():
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            os.fstat(number)
            return "an open file of the grader"


def seeing_processes():
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and name != str(os.getpid()):
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if "".join(TASK["marker"]).encode() in file.read():
                        return "the list of the host's processes"


def signalling_processes():
    if TASK["victim"] != os.getpid():
        with contextlib.suppress(OSError):
            os.kill(TASK["victim"], signal.SIGTERM)  # the other side checks whether it arrived


def another_user():
    # Of root, only the group: it would lose what the attempts after this one need.
    attempt, number = (os.setuid, 0) if os.getuid() else (os.setgid, 1)
    with contextlib.suppress(OSError):
        attempt(number)
        return "the right to become another user"


def capabilities():
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("CapPrm", "CapEff", "CapAmb", "CapInh") and int(value, 16):
                return "capabilities of root"
            if name == "NoNewPrivs" and int(value) != 1:
                return "new privileges through setuid programs"


def mounting():
    if LIBC.mount(b"none", TASK["home"].encode(), b"tmpfs", 0, None) == 0:
        return "mounting"


def namespace():
    pid = os.fork()
    if pid == 0:
        os._exit(1 if LIBC.unshare(CLONE_NEWUSER) == 0 else 0)
    if os.waitpid(pid, 0)[1]:
        return "a user namespace of its own, and with it root's side of the kernel"


def tracing():
    if LIBC.ptrace(PTRACE_ATTACH, 1, None, None) == 0:
        return "the memory of the sandbox's first process"
    with contextlib.suppress(OSError), open("/proc/1/mem", "r+b"), open("/proc/1/status") as file:
        lines = dict(line.split(":", 1) for line in file)
        if (lines["Seccomp"].strip(), lines["NoNewPrivs"].strip()) != ("2", "1"):
            return "an init process with fewer restrictions than the others"


def keyring():
    if LIBC.syscall(KEYCTL, GET_KEYRING, USER_KEYRING, 1) >= 0:
        return "a keyring that the next submission can read"


def locking():
    with open(os.__file__, "rb") as file:
        for number in (fcntl.F_GETLK, fcntl.F_GETLEASE, OPEN_FILE_LOCK):
            with contextlib.suppress(OSError):
                fcntl.fcntl(file, number, bytes(64))
                return "locks on files that other sandboxes see, too"
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return "locks on files that other sandboxes see, too"


def watching():
    if LIBC.inotify_init1(0) >= 0:
        return "notifications of what other sandboxes open"


def stamping():
    for name, inode in TASK["devices"].items():
        with contextlib.suppress(OSError):
            status = os.stat(f"/dev/{name}")
            if [status.st_dev, status.st_ino] == inode:
                os.utime(f"/dev/{name}")
                return f"the host's /dev/{name}, whose time stamp other sandboxes see"


def counting():
    """Check whether counters of the whole machine show what this process does."""
    before, kept = counters(), [os.pipe() for _ in range(8)]
    kept += [os.openpty() for _ in range(4)]
    changed = [path for path, text in counters().items() if text != before[path]]
    for descriptor in (number for pair in kept for number in pair):
        os.close(descriptor)
    if changed:
        return f"counters of the whole machine ({changed[0]}), which other sandboxes change"


def counters():
    contents = {}
    for path in ("/proc/sys/fs/file-nr", "/proc/sys/kernel/pty/nr", "/proc/loadavg",
                 "/proc/meminfo", "/proc/vmstat", "/proc/stat", "/proc/interrupts"):
        contents[path] = ""
        with contextlib.suppress(OSError), open(path) as file:
            contents[path] = file.read()
    return contents


def processes():
    children, limit = [], TASK["processes"]
    try:
        while len(children) <= limit:
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
        return f"more than {limit} processes"
    except OSError:
        return None
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def disk():
    for folder in TASK["folders"]:
        path = os.path.join(folder, "filled")
        try:
            if fill(path, TASK["disk"] * 3 // 2):
                return f"more than {TASK['disk']} bytes of disk in {folder}"
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)


def file_size():
    path = os.path.join(TASK["home"], "long")
    with contextlib.suppress(OSError), open(path, "wb") as file:
        os.ftruncate(file.fileno(), TASK["file_size"] + 1)
        return f"a file of more than {TASK['file_size']} bytes"


def fill(path, size):
    with open(path, "wb", buffering=0) as file:
        try:
            while file.tell() < size:
                file.write(bytes(64 * 1024))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                return False
            raise
    return True


def memory():
    """Use more memory than the limit in several processes, each of which stays below it."""
    part = TASK["memory"] * 2 // 5
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(part)
            held[::4096] = b"\1" * len(held[::4096])
            time.sleep(3)
            os._exit(0)
    for _ in range(4):
        if os.wait()[1]:
            time.sleep(3)  # one was killed, so this one will be, too
    return "more memory than the limit"


def survival():
    """Leave a process behind that ignores SIGTERM, SIGINT, and SIGHUP."""
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.setsid()
        time.sleep(10)
        os._exit(0)


def main():
    got = {}
    for name in TASK["attempts"]:
        try:
            reached = globals()[name]()
        except Exception as error:
            reached = f"nothing, but the attempt failed: {type(error).__name__}: {error}"
        if reached:
            got[name] = reached
    print(json.dumps({"got": got, "done": TASK["attempts"]}), flush=True)
    if "survival" in TASK["attempts"]:
        time.sleep(60)


main()

"""The machine around the sandbox: processes, kernel interfaces, what stays behind for others."""

from __future__ import annotations

from tests.attacks.attack import attack
from tests.attacks.rows.stages import WRONG_DOUBLE, WRONG_TRIPLE

PTRACE = r'''
import ctypes, glob, os
libc = ctypes.CDLL(None, use_errno=True)
for process in glob.glob("/proc/[0-9]*"):
    number = int(process.rsplit("/")[-1])
    if number != os.getpid():
        print(number, libc.ptrace(16, number, 0, 0), os.strerror(ctypes.get_errno()))
''' + WRONG_DOUBLE

SIGNALS = r'''
import os, signal
for number in (1, 2, 3, os.getppid(), -1, -os.getpgrp()):
    for kind in (signal.SIGUSR1, signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):
        try:
            if number not in (-1, -os.getpgrp()):
                os.kill(number, kind)
        except OSError as error:
            print(number, error)
''' + WRONG_TRIPLE

# Leaves something at every place that two sandboxes may share, and looks what is there.
LEAVES = r'''
import ctypes, glob, os, socket
libc = ctypes.CDLL(None, use_errno=True)
word = b"PEER-" b"CANARY left here"
print("found", glob.glob("/tmp/*") + glob.glob("/dev/shm/*") + glob.glob("/var/tmp/*"))
for path in glob.glob("/tmp/left*") + glob.glob("/dev/shm/left*") + glob.glob("/var/tmp/left*"):
    print(open(path).read())
for path in ("/tmp/left", "/dev/shm/left", "/var/tmp/left", "/run/left", "/left", "/usr/left"):
    try:
        open(path, "wb").write(word)
    except OSError as error:
        print(error)
key = libc.syscall(217 if os.uname().machine == "aarch64" else 248, b"user", b"left", word,
                   len(word), -4)  # add_key into the user's keyring
found = libc.syscall(219 if os.uname().machine == "aarch64" else 250, 10, -4, b"user", b"left", 0)
print("keyring", key, found)
segment = libc.shmget(4711, 4096, 0o1666)
queue = libc.msgget(4711, 0o1666)
print("segment", segment, queue)
try:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\0left")
        print(one.recv(100))
except OSError as error:
    print(error)
if os.fork() == 0:
    os.setsid()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("\0left")
        one.listen()
        while True:
            other, _ = one.accept()
            other.sendall(word)
            other.close()
'''

PRIVILEGES = r'''
import ctypes, os, subprocess
libc = ctypes.CDLL(None, use_errno=True)
def tried(what, result):
    print(what, result, os.strerror(ctypes.get_errno()) if result else "DONE")
for name in ("setuid", "setgid"):
    tried(name, getattr(libc, name)(0))
tried("chroot", libc.chroot(b"/"))
for flag in (0x10000000, 0x10020000, 0x50000000):
    tried("unshare", libc.unshare(flag))
tried("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
tried("umount", libc.umount2(b"/usr", 2))
tried("pivot", libc.syscall(155, b"/tmp", b"/tmp"))
tried("sethostname", libc.sethostname(b"pwned", 5))
tried("reboot", libc.reboot(0))
tried("nice", libc.setpriority(0, 0, -20))
for path in ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/sys/kernel/uevent_helper",
             "/proc/1/oom_score_adj", "/sys/fs/cgroup/cgroup.procs", "/etc/passwd", "/usr/bin/x"):
    try:
        open(path, "a").close()
        print("WRITABLE", path)
    except OSError as error:
        print(error)
for program in ("su", "sudo", "mount", "newgrp", "passwd"):
    try:
        print(program, subprocess.run([program, "--version"], capture_output=True, timeout=2,
                                      stdin=subprocess.DEVNULL).returncode)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(error)
''' + WRONG_DOUBLE

TERMINAL = r'''
import fcntl, os, termios
for path in ("/dev/tty", "/dev/console", "/dev/pts/0", "/dev/ptmx", "/proc/1/fd/0"):
    try:
        number = os.open(path, os.O_RDWR)
        for letter in b"touch pwned\n":
            fcntl.ioctl(number, termios.TIOCSTI, bytes([letter]))
        print("TYPED into", path)
    except OSError as error:
        print(path, error)
''' + WRONG_DOUBLE

CLOCK = r'''
import time
for number in (0, 1):
    try:
        time.clock_settime(number, 0)
        print("SET")
    except OSError as error:
        print(error)
time.time = time.monotonic = time.perf_counter = lambda: 0.0
time.sleep = lambda seconds: None
import signal
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
''' + WRONG_TRIPLE

# What a fresh interpreter, or a fresh sandbox, would read at its start.
STARTUP = r'''
import os, sys, site
text = "raise SystemExit('pwned')\n"
home = os.path.expanduser("~")
user = site.getusersitepackages()
for path in (f"{home}/.ipython/profile_default/startup/00.py", f"{user}/x.pth",
             f"{user}/usercustomize.py", f"{home}/.bashrc", f"{home}/.profile",
             f"{home}/.config/matplotlib/matplotlibrc", "lab.py", "json.py", "IPython.py",
             *(f"{folder}/sitecustomize.py" for folder in sys.path if folder),
             __import__("lab").__path__[0] + "/check/checks.py",
             __import__("lab").__path__[0] + "/guest/__main__.py",
             "../../../grader/pwned.py", "@ROOT@/pwned-by-writefile"):
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write(text)
        print("wrote", path)
    except OSError as error:
        print(error)
''' + WRONG_DOUBLE + r'''
import os
def triple(x):
    os._exit(1)
'''

WRITEFILE = "%%writefile @ROOT@/pwned-by-magic\nprint('pwned')"
SHELL = r'''
!touch @ROOT@/pwned-by-shell; rm -rf @ROOT@/submitted/zoe; kill -9 -1
''' + WRONG_TRIPLE

LATE = r'''
import atexit, os, sys, threading, time
atexit.register(lambda: time.sleep(100))
class Last:
    def __del__(self):
        time.sleep(100)
last = Last()
threading.Thread(target=time.sleep, args=(100,)).start()
sys.excepthook = sys.unraisablehook = lambda *arguments: time.sleep(100)
get_ipython().events.register("post_run_cell", lambda result: None)
get_ipython().events.register("pre_run_cell", lambda info: setattr(info, "raw_cell", "pass"))
''' + WRONG_DOUBLE

ATTACKS = [
    attack("j1", "traces", "ptrace of every process", double=PTRACE),
    attack("j2", "signals", "Signals to the processes around it", may_end=True, triple=SIGNALS),
    attack("j3", "leaves-one", "Leaves words for the next student's sandbox", may_end=True,
           double=LEAVES + WRONG_DOUBLE),
    attack("j3", "leaves-two", "Looks for what another student left", may_end=True,
           double=LEAVES + WRONG_DOUBLE),
    attack("j4", "climbs", "Tries to become root, mount, and change the kernel's settings",
           may_end=True, double=PRIVILEGES),
    attack("j5", "types", "Types into the instructor's terminal", double=TERMINAL),
    attack("j6", "clocks", "Sets and patches the clock", may_end=True, triple=CLOCK),
    attack("j7", "starts-up", "Plants files that interpreters read at their start, then dies",
           score=None, double=STARTUP, triple="pass", reason="triple"),
    attack("j8", "writes-out", "%%writefile and ! outside the workspace", may_end=True,
           double=WRITEFILE, triple=SHELL),
    attack("j9", "lingers", "atexit, finalizers and threads that do not end", may_end=True,
           double=LATE),
]

"""Code in a sandbox: its surroundings, its limits, and its end."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grader.sandbox import cgroups, inside, mounts, watchdog
from grader.sandbox.interface import MB, Limits
from labcore.errors import LabError
from labcore.workspace import CHECKOUT, CODE
from tests.grader.sandbox.conftest import (
    HOG,
    LIMITS,
    STUBBORN,
    a_killed_grader,
    finish,
    gone,
    new_marker,
    received,
    wait,
)
from tests.needs import because

pytestmark = pytest.mark.slow


def test_talks_over_its_pipes(backend):
    with backend.start(["/bin/cat"], LIMITS) as running:
        for word in (b"one\n", b"two\n"):
            os.write(running.stdin, word)
            assert os.read(running.stdout, 100) == word
        assert running.poll() is None and running.end_reason() == ""


def test_is_an_ordinary_user_without_privileges(python):
    ended = python("import os; print(os.getuid(), os.getgroups())\n"
                   "print(open('/proc/self/status').read())")
    lines = dict(line.split(":", 1) for line in ended.out.splitlines()[1:] if line)
    assert ended.out.split()[0] != "0"
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(lines[name], 16) == 0
    assert lines["NoNewPrivs"].strip() == "1" and lines["Seccomp"].strip() == "2"


def test_has_the_environment_of_a_student_and_nothing_of_ours(python, monkeypatch):
    monkeypatch.setenv("COURSE_SECRET", "canary")
    ended = python("import os; print(os.getcwd(), dict(os.environ))",
                   environment={"WHATEVER": "given"})
    assert ended.out.startswith(mounts.HOME)
    assert "given" in ended.out and f"{mounts.HOME}/workspace" in ended.out
    assert "canary" not in ended.out


def test_inherits_no_descriptor(python):
    with open(__file__) as file, socket.socket() as other:
        for descriptor in (file.fileno(), other.fileno()):
            os.set_inheritable(descriptor, True)
        ended = python("import os; print(os.listdir('/proc/self/fd'))")
    assert ended.out == "['0', '1', '2', '3']\n"  # the last one reads this folder


def test_sees_the_environment_and_the_course_code_only(python):
    ended = python(f"import os, sys; print(sys.prefix, os.path.exists({str(CODE / 'lab')!r}))\n"
                   f"print(os.listdir({str(CHECKOUT)!r}))")
    assert ended.out.splitlines()[0] == f"{sys.prefix} True"
    names = {Path(path).name for path in (CODE, sys.prefix)
             if Path(path).is_relative_to(CHECKOUT)}
    assert set(eval(ended.out.splitlines()[1])) == {"code"} | (names & {".venv"})


def test_runs_a_module_of_the_course(backend):
    ended = finish(backend, mounts.python("labcore.errors"), Limits())
    assert ended.code == 0, ended.noise


def test_puts_files_into_the_home(python):
    ended = python("import os; print(open('workspace/deep/answer').read()); "
                   "open('workspace/deep/new', 'w').write('x')",
                   files={"workspace/deep/answer": b"42"})
    assert (ended.out, ended.code) == ("42\n", 0), ended.noise


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", ".", "a/../../x", "a\0b"])
def test_takes_no_file_for_elsewhere(backend, name):
    with pytest.raises(LabError, match="below /home/student"):
        backend.start(["/bin/true"], LIMITS, files={name: b""})


@pytest.mark.parametrize("path", ["/x", "/usr/x", "/etc/x", "/dev/x", "/run/x", "/proc/x", "/work",
                                  str(CODE / "x"), sys.prefix + "/x"])
def test_writes_nowhere_else(python, path):
    assert python(f"open({path!r}, 'w')").code == 1


@pytest.fixture(params=["counted by the kernel", "counted by the watchdog"])
def counted(request, monkeypatch):
    """Control groups where this machine has them; and as if it had none."""
    if request.param == "counted by the watchdog":
        monkeypatch.setattr(cgroups, "make", lambda limits: None)


def test_memory_over_all_processes_is_held(counted, python):
    ended = python(HOG)
    assert ended.why == "its memory passed 200 MB" and ended.code == -signal.SIGKILL
    assert ended.seconds < 6


def test_files_count_as_memory(counted, python):
    ended = python("import time\nfor i in range(60):\n"
                   "  open(f'/dev/shm/{i}', 'wb').write(bytes(5 * 2**20))\ntime.sleep(20)",
                   Limits(memory=100 * MB, disk=400 * MB))
    assert ended.why == "its memory passed 100 MB"


def test_shared_memory_counts_once(counted, python):
    """Eight processes that share 60 MB are well below 200 MB."""
    ended = python("import mmap, os, time\nx = mmap.mmap(-1, 60 * 2**20)\nx.write(bytes(len(x)))\n"
                   "for _ in range(8):\n  if os.fork() == 0:\n    x[:len(x):4096]\n"
                   "    time.sleep(0.5)\n    os._exit(0)\n"
                   "[os.wait() for _ in range(8)]\nprint('through')")
    assert (ended.out, ended.code) == ("through\n", 0)


def test_many_empty_files_count(python, monkeypatch):
    monkeypatch.setattr(cgroups, "make", lambda limits: None)
    ended = python("i = 0\nwhile True:\n  open(f'/tmp/{i}', 'x'); i += 1", Limits(memory=64 * MB))
    assert ended.why == "its memory passed 64 MB"


def test_the_watchdog_counts_processes(python, monkeypatch):
    """The kernel's own limit does not work, as for root or on an old kernel."""
    monkeypatch.setattr(cgroups, "make", lambda limits: None)
    monkeypatch.setattr(inside, "rlimits", lambda limits: ["--core=0"])
    ended = python("import os, time\nfor _ in range(60):\n  if os.fork() == 0: time.sleep(20)\n"
                   "time.sleep(20)")
    assert ended.why == "more than 24 processes and threads"


def test_a_machine_short_of_memory_ends_it(python, monkeypatch):
    monkeypatch.setattr(watchdog, "SCARCE", 1.1)
    ended = python("import time; time.sleep(20)")
    assert ended.why == "the whole machine ran short of memory"


def test_processes_are_held(python):
    ended = python("import os, time\nn = 0\ntry:\n  while n < 500:\n    if os.fork() == 0:\n"
                   "      time.sleep(20)\n      os._exit(0)\n    n += 1\n"
                   "except BlockingIOError:\n  print(n)")
    assert 10 <= int(ended.out) <= LIMITS.processes


@pytest.mark.parametrize("folder", mounts.WRITABLE)
def test_disk_is_held(python, folder):
    ended = python(f"import os\nn = 0\ntry:\n  while n < 100:\n"
                   f"    open(f'{folder}/{{n}}', 'wb').write(bytes(2**20)); n += 1\n"
                   "except OSError:\n  print(n)")
    assert int(ended.out) == 16


def test_file_size_and_open_files_are_held(python):
    ended = python("import os\ntry:\n  open('x', 'wb').write(bytes(9 * 2**20))\n"
                   "except OSError as error:\n  print(error.strerror)\n"
                   "try:\n  [os.dup(0) for _ in range(100)]\n"
                   "except OSError as error:\n  print(error.strerror)")
    assert ended.out == "File too large\nToo many open files\n"


def test_processor_time_is_held(python):
    ended = python("while True: pass", Limits(cpu_seconds=1))
    assert ended.why == "its processor time was used up"


def test_noise_is_kept_to_a_measure(python):
    ended = python("import os\nfor _ in range(400): os.write(2, b'x' * 10000)\nprint('through')")
    assert ended.out == "through\n" and len(ended.noise) == 64 * 1024


@pytest.mark.parametrize(("source", "why"), [
    ("raise SystemExit(3)", "exit code 3"), ("", "exit code 0"),
    ("import os; os.kill(os.getpid(), 9)", "ended by signal 9"),
    ("import os; os.abort()", "ended by signal 6")])
def test_says_how_it_ended(python, source, why):
    assert python(source).why == why


def test_kill_takes_everybody_at_once(backend):
    marker = new_marker()
    running = backend.start([sys.executable, "-I", "-c", STUBBORN + marker], LIMITS)
    assert os.read(running.stdout, 1) == b"+"
    begun = time.monotonic()
    running.kill()
    assert time.monotonic() - begun < 1
    assert gone(marker, 0)
    assert running.end_reason() == "it was stopped"
    running.kill()


def test_ends_with_the_grader(backend, monkeypatch):
    """Also when the grader has no time to say good-bye. Its groups are removed by a later one."""
    before = groups()
    marker = a_killed_grader(type(backend))
    assert gone(marker, 2)
    monkeypatch.setattr(cgroups, "ENTRY_SECONDS", 0)
    deadline = time.monotonic() + 5
    while groups() - before and time.monotonic() < deadline:  # the last ones may still be leaving
        cgroups.sweep()
        time.sleep(0.02)
    assert not groups() - before


def groups() -> set[Path]:
    """Return the control groups of graders that have ended."""
    return {path for path in sandbox_groups()
            if not Path("/proc", path.name.split("-")[2]).exists()}


def sandbox_groups() -> set[Path]:
    """Return the control groups of all sandboxes; those of other tests may vanish meanwhile."""
    return {Path(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup")
            for name in names if name.startswith("lab-sandbox-")}


def test_many_processes_do_not_starve_a_neighbor(backend):
    """Sixteen endless loops in one sandbox, a single one in the other: shares alike.

    Each starts a session, since the kernel shares among sessions where there are no groups.
    """
    if not (group := cgroups.make(LIMITS)):
        pytest.skip(because("cgroups"))
    group.remove()
    source = ("import os, time\n[os.fork() for _ in range({doublings})]\n"
              "if os.getpid() != os.getsid(0): os.setsid()\nbegun = time.monotonic()\n"
              "while time.monotonic() - begun < 1.5: pass\n"
              "os.write(1, b'%f\\n' % time.process_time()); time.sleep(1)")
    both = [backend.start([sys.executable, "-I", "-c", source.format(doublings=n)], LIMITS)
            for n in (4, 0)]
    with both[0], both[1]:
        hog, honest = (sum(map(float, received(one).split())) for one in both)
    assert honest > hog / 4  # of seventeen equals it would be a sixteenth


def test_two_at_once_are_two_users_who_do_not_see_each_other(backend):
    source = ["/bin/sh", "-c", "echo $(id -u) $(ls -d /proc/[0-9]* | wc -l); cat"]  # in one piece
    with backend.start(source, LIMITS) as one, backend.start(source, LIMITS) as two:
        time.sleep(0.2)
        (uid, seen), (other, _) = (os.read(run.stdout, 100).split() for run in (one, two))
        assert int(seen) <= 5
        if os.geteuid() == 0:
            assert uid != other


def test_leaves_nothing_behind(backend):
    for _ in range(3):
        finish(backend, ["/bin/true"])
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        running = backend.start(["/bin/cat"], LIMITS)
        running.kill()
    del running
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not [path for path in sandbox_groups()
                if path.name.startswith(f"lab-sandbox-{os.getpid()}-")]
    with backend.start(["/bin/true"], LIMITS) as running:
        wait(running)


def test_many_at_once_from_many_threads(backend):
    """No two in one slot, none mixed up with another, whoever is killed."""
    def one(number: int) -> str:
        with backend.start(["/bin/sh", "-c", f"echo {number}; cat"], LIMITS) as running:
            return os.read(running.stdout, 100).decode().strip()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(24))) == [str(number) for number in range(24)]

"""`lab start`: one command until the address, one signal until nothing is left."""

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from corpus_tools import cli as data
from lab import cli
from labcore import workspace
from tests.conftest import cluster_processes

pytestmark = pytest.mark.cluster

LAB = Path(sys.executable).with_name("lab")
PUBLIC = ("--ip", "0.0.0.0")
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)")


@pytest.fixture(scope="module")
def home(tmp_path_factory, make_cluster):  # make_cluster: skips where there is no Slurm
    """A workspace whose data is there already, made from a text of the user's own."""
    home = tmp_path_factory.mktemp("start")
    text = home / "text.jsonl"
    # As varied as a language: it alone yields the vocabulary, at once.
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(200)]
    text.write_text("".join(json.dumps({"text": " ".join(draw.choices(words, k=100))}) + "\n"
                            for _ in range(50)))
    options = data.DataOptions(inputs=(str(text),), gpt2_entries=300, small_entries=280)
    data.make(home, lambda line: None, options)
    yield home
    assert not leftovers(home)


def leftovers(home):
    """Processes of this workspace: the cluster's, and everything that works in its folder."""
    left = cluster_processes(home)
    for process in psutil.process_iter(["cwd", "cmdline"]):
        if str(process.info["cwd"] or "").startswith(str(home)):
            left.append(" ".join(process.info["cmdline"] or []))
    return left


# `lab start` with a server that is up at once in place of JupyterLab, whose start is most of the
# work and the same in every test.
QUICK_START = """\
import sys
from lab import cli, jupyter
full = jupyter.Jupyter._program
jupyter.Jupyter._program = lambda self: [{path!r}, *full(self)[2:]]
sys.exit(cli.main())
"""
STAND_IN = """\
import http.server, os, sys

flags = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        mine = self.headers["Authorization"] == "token " + os.environ["JUPYTER_TOKEN"]
        self.send_response(200 if mine else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()
        return mine

    def do_POST(self):  # /api/shutdown
        if self.do_GET():
            os._exit(0)

http.server.ThreadingHTTPServer((flags["ip"], int(flags["port"])), Handler).serve_forever()
"""


class Started:
    """`lab start`, running in the background.

    Args:
        home: the workspace.
        *flags: of `lab start`.
        real: start JupyterLab, not the stand-in.
    """

    def __init__(self, home, *flags, real=False):
        path = home / "stand_in.py"
        path.write_text(STAND_IN)
        command = [LAB] if real else [sys.executable, "-c", QUICK_START.format(path=str(path))]
        self.process = subprocess.Popen(
            [*command, "start", *flags], env={**os.environ, "LAB_HOME": str(home)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            # A shell without job control, as under pytest, would make it deaf to SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        self.out = ""

    def address(self):
        for line in self.process.stdout:
            self.out += line
            match = ADDRESS.search(line)
            if match:
                return match.group(0), int(match.group(1)), match.group(2)
        pytest.fail(self.out + self.process.stderr.read())

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, self.out + out, err


def get(port, path, token):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}",
                                     headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("number, flags, reached, real", [
    (signal.SIGINT, (), False, False), (signal.SIGTERM, PUBLIC, True, False),
    pytest.param(signal.SIGTERM, PUBLIC, True, True, marks=pytest.mark.stress)])
def test_until_the_address_and_back(home, number, flags, reached, real):
    """JupyterLab is reached from elsewhere only where that was asked for. The test of a kill checks
    the real one, too."""
    started = Started(home, *flags, real=real)
    address, port, token = started.address()
    assert address.startswith("http://127.0.0.1:")
    check_answers(port, token, reached)
    terminal = subprocess.run(
        ["bash", "--rcfile", home / ".cluster" / "bashrc", "-ic", "sinfo -h; which python lab"],
        env={**os.environ, "LAB_HOME": str(home)}, capture_output=True, text=True, timeout=60)
    assert "slurmpar*" in terminal.stdout
    assert str(LAB) in terminal.stdout and str(LAB.with_name("python")) in terminal.stdout
    again = subprocess.run([LAB, "start"], env={**os.environ, "LAB_HOME": str(home)},
                           capture_output=True, text=True, timeout=60)
    assert again.returncode == 1
    assert f"the lab is already running in {home}: {address}" in again.stderr
    code, out, err = started.stop(number)
    assert code == 0, err  # `make` prints no error
    assert "Ctrl-C stops everything" in out and "Stopping the cluster" in out
    assert not leftovers(home)


def check_answers(port, token, reached):
    with socket.socket() as client:  # an address of this machine, but not the usual one
        assert (client.connect_ex(("127.0.0.2", port)) == 0) == reached
    assert get(port, "/api/status", token)[0] == 200
    with pytest.raises(urllib.error.HTTPError):
        get(port, "/api/contents", "wrong")


def shut_down(port, token):
    """Choose File > Shut Down."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/shutdown", method="POST",
                                     headers={"Authorization": f"token {token}"})
    urllib.request.urlopen(request, timeout=30).close()


def cluster_is_up(home):
    return subprocess.run([LAB, "cluster", "status"], env={**os.environ, "LAB_HOME": str(home)},
                          capture_output=True).returncode == 0


def test_after_a_kill_nothing_of_jupyter_stays_and_the_next_start_works(home):
    started = Started(home, real=True)
    started.address()
    started.process.kill()
    started.process.wait()
    deadline = time.monotonic() + 60
    while any("jupyterlab" in line for line in leftovers(home)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any("jupyterlab" in line for line in leftovers(home))
    second = Started(home, *PUBLIC, real=True)
    _, port, token = second.address()
    check_answers(port, token, True)
    shut_down(port, token)
    _, err = second.process.communicate(timeout=60)
    assert second.process.returncode == 0, err
    # The cluster survived the kill, so the starts that find it leave it running.
    assert cluster_is_up(home)
    third = Started(home)
    third.address()
    code, out, err = third.stop()
    assert code == 0, err  # `make` prints no error
    assert "Stopping the cluster" not in out and cluster_is_up(home)
    subprocess.run([LAB, "cluster", "down"], env={**os.environ, "LAB_HOME": str(home)}, check=True,
                   capture_output=True)
    assert not leftovers(home)


def test_stopping_goes_on_when_the_terminal_is_gone(home):
    started = Started(home)
    started.address()
    started.process.stdout.close()
    started.process.stderr.close()
    started.process.send_signal(signal.SIGHUP)
    assert started.process.wait(60) == 0
    assert not leftovers(home)


@pytest.mark.parametrize("port", ["70000", "-1", "80", "x"])
def test_a_port_that_is_none(port, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["start", f"--port={port}"])
    assert f"{port} is not a port from 1024 to 65535; nearest: 8888" in capsys.readouterr().err


@pytest.mark.parametrize("ip", ["localhost", "300.0.0.1", "::", ""])
def test_an_ip_that_is_none(ip, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["start", f"--ip={ip}"])
    assert f"{ip} is not an IPv4 address; use 127.0.0.1" in capsys.readouterr().err


def test_impatience_does_not_leave_the_cluster_running(home):
    started = Started(home)
    started.address()
    started.process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    assert started.stop()[0] == 0
    assert not leftovers(home)


def test_shutting_jupyter_down_from_its_menu_is_no_error(home):
    started = Started(home)
    _, port, token = started.address()
    shut_down(port, token)
    _, err = started.process.communicate(timeout=60)
    assert started.process.returncode == 0, err
    assert not leftovers(home)


def test_the_workspace_is_laid_out(home):
    assert (home / "megatron" / "Megatron-LM").resolve() == workspace.CODE.resolve()
    assert (home / "code" / "dp_two_nodes.sh").exists()

"""The warm commands are the programs they stand for: output, exit codes, signals, and ranks."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from labcore.workspace import CHECKOUT
from tests.labs.warm.client import command

pytestmark = pytest.mark.slow
PATIENCE = 300  # seconds
SAY = "import os, sys\nprint(sys.argv[1:], os.environ['WORD'], flush=True)\n"
WAIT = ("import subprocess\nsleep = subprocess.Popen(['sleep', '1000'])\n"
        "print(sleep.pid, flush=True)\nsleep.wait()\n")
RANK = ("import os, sys, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "os.write(1, f'{dist.get_rank()} {dist.get_world_size()}\\n'.encode())\n"
        "try: dist.barrier()\nexcept RuntimeError: pass  # the other rank left it first\n"
        "os._exit(int(sys.argv[1]) if dist.get_rank() else 0)\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("warm")
    server = subprocess.Popen([sys.executable, "-m", "tests.labs.warm.server", str(made)],
                              cwd=CHECKOUT)
    while not (made / os.uname().nodename).is_socket():
        assert server.poll() is None
        time.sleep(0.05)
    yield made
    server.kill()
    server.wait()


@pytest.fixture
def start(folder, tmp_path):
    started = []

    def start(kind: str, source: str, *words: str, flags: tuple[str, ...] = ()):
        (tmp_path / "program.py").write_text(source)
        started.append(subprocess.Popen([*command(folder), kind, *flags, "program.py", *words],
                                        text=True, cwd=tmp_path,
                                        env=os.environ | {"WORD": "mine"},
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def end(process):
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


def test_a_program_has_its_arguments_environment_and_output(start):
    assert end(start("python", SAY, "a", "b c"))[:2] == (0, "['a', 'b c'] mine\n")


@pytest.mark.parametrize(("source", "code", "said"), [
    ("raise SystemExit(3)", 3, ""), ("raise SystemExit('no')", 1, "no"),
    ("1 / 0", 1, "ZeroDivisionError"), ("import os; os.kill(os.getpid(), 9)", -9, "")])
def test_a_program_ends_as_it_would(start, source, code, said):
    returned, _, errors = end(start("python", source))
    assert returned == code and said in errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_takes_its_processes_with_it(start, number):
    process = start("python", WAIT)
    sleep = psutil.Process(int(process.stdout.readline()))
    process.send_signal(number)
    assert process.wait(PATIENCE) == -number
    sleep.wait(PATIENCE)


@pytest.mark.parametrize("code", [0, 5])
def test_torchrun_starts_ranks_that_meet_and_sees_how_they_end(start, code):
    returned, output, errors = end(start("torchrun", RANK, str(code), flags=(
        "--standalone", "--nproc_per_node", "2")))
    assert sorted(output.splitlines()) == ["0 2", "1 2"]
    assert bool(returned) == bool(code) and (f"exitcode  : {code} " in errors) == bool(code)

"""`nvidia-smi` as a program: what it refuses, how it ends, and the wrapper on the PATH."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from job_monitor.nvidia_smi import cli
from slurmbox import clients
from slurmbox.addresses import ClusterNetwork
from slurmbox.layout import Layout

PROGRAM = Path(cli.__file__).with_name("__main__.py")


@pytest.mark.parametrize(("words", "code", "said"), [
    ("--query-gpu=memory.usd --format=csv", 2,
     'Field "memory.usd" is not a valid field to query; nearest: memory.used'),
    ("--query-gpu= --format=csv", 2, 'Field "" is not a valid field to query; nearest: timestamp'),
    ("--query-compute-apps=pd --format=csv", 2,
     'Field "pd" is not a valid field to query; nearest: pid'),
    ("--query-gpu=index", 2, "--query-gpu with --format=: nearest: --format=csv"),
    ("--query-gpu=index --format=noheader,cvs", 2, "--format=noheader,cvs: nearest: "
     "--format=csv,noheader"),
    ("--format=csv", 2, "nearest: --query-gpu=index,memory.used --format=csv"),
    ("--query-gpu=index --query-compute-apps=pid --format=csv", 2, "pass one of them"),
    ("--list-gpu", 2, "Option --list-gpu is not recognized, or not modeled; nearest: "
     "--list-gpus"),
    ("-q", 2, "nearest: --query-gpu."), ("dmon", 2, "nearest: --query-gpu with -l 1"),
    ("topo -p", 2, "topo -p: nearest: nvidia-smi topo -m"), ("topo", 2, "nvidia-smi topo -m"),
    ("-l never", 2, "-l never: not a valid period; nearest: -l 1"),
    ("-l 0", 2, "nearest: -l 1"), ("-l nan", 2, "nearest: -l 1"), ("-l -3", 2, "nearest: -l 1"),
    ("-lms 1", 2, "-lms 1: not a valid period; nearest: -lms 20"),
    ("-l 1 -lms 100", 2, "pass one of them"), ("-i", 2, "expected one argument"),
    ("-i 7", 6, "No devices were found"), ("-i GPU-0", 6, "No devices were found"),
    ("--node slurmnod2", 6, "--node slurmnod2: no such node; nearest: slurmnode2"),
    ("-f /nonexistent/log.csv", 2, "-f /nonexistent/log.csv: No such file or directory; nearest: "),
])
def test_bad_input_is_refused_with_the_nearest(cluster, capsys, words, code, said):
    assert cluster.main(*words.split(" ")) == code
    captured = capsys.readouterr()
    assert said in captured.err and not captured.out


def test_a_cluster_without_gpus(make, capsys):
    assert make("none").main() == 6
    assert capsys.readouterr().err == "No devices were found\n"


def test_no_cluster(tmp_path, capsys):
    assert cli.main(tmp_path, tmp_path, []) == 9
    assert "the cluster is not running: lab cluster up" in capsys.readouterr().err


def program(cluster, *words):
    return [sys.executable, "-I", "-S", str(PROGRAM), str(cluster.state), str(cluster.proc), *words]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_loop_ends_without_a_word(cluster, number):
    words = "--query-gpu=index,memory.used", "--format=csv", "-lms", "50", "--node=slurmnode1"
    with subprocess.Popen(program(cluster, *words), text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        lines = [process.stdout.readline() for _ in range(5)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert lines == ["index, memory.used [MiB]\n", *["0, 0 MiB\n", "1, 0 MiB\n"] * 2]
    assert process.returncode == -number and "Traceback" not in errors


def test_a_pipe_that_closes_ends_it(cluster):
    command = " ".join(map(repr, program(cluster, "-L", "-lms", "20"))) + " | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True,
                          timeout=20)
    assert done.stdout == "slurmnode1:\n" and "Traceback" not in done.stderr


def test_it_starts_without_torch_and_other_packages(cluster):
    code = ("import sys; sys.argv[0] = sys.argv[1]; del sys.argv[1]\n"
            "import runpy\ntry:\n runpy.run_path(sys.argv[0], run_name='__main__')\n"
            "except SystemExit as end: print(end.code, {'torch', 'numpy', 'psutil', 'rich'} "
            "& {*sys.modules})")
    done = subprocess.run([sys.executable, "-I", "-c", code, str(PROGRAM), str(cluster.state),
                           str(cluster.proc), "-L"], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 set()", done.stderr


@pytest.fixture
def layout(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    made = Layout(tmp_path / "a workspace")
    made.bin.mkdir(parents=True)
    return made


def smi(layout, *words):
    return subprocess.run(["nvidia-smi", *words], env=clients.full_environment(layout.home),
                          capture_output=True, text=True)


@pytest.mark.parametrize("written", ["before the first up", "by up"])
def test_a_real_one_comes_first(layout, tmp_path, monkeypatch, written):
    real = tmp_path / "real tools" / "nvidia-smi"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\necho "real: $*"\nexit 3\n')
    real.chmod(0o755)
    if written == "by up":
        (layout.bin / "nvidia-smi").write_text(
            clients.smi_wrapper(layout, ClusterNetwork("namespaces")))
        (layout.bin / "nvidia-smi").chmod(0o755)
    else:
        clients.write_stubs(layout)
    for path in (f"{real.parent}:/usr/bin:/bin", f"/usr/bin:/bin:{real.parent}"):
        monkeypatch.setenv("PATH", path)
        done = smi(layout, "-L", "two words")
        assert (done.returncode, done.stdout, done.stderr) == (3, "real: -L two words\n", "")


def test_another_workspace_s_is_not_a_real_one(layout, tmp_path, monkeypatch):
    other = Layout(tmp_path / "other")
    other.bin.mkdir(parents=True)
    clients.write_stubs(layout)
    clients.write_stubs(other)
    environment = clients.full_environment(layout.home)
    environment["PATH"] += f":{other.bin}"
    done = subprocess.run(["nvidia-smi"], env=environment, capture_output=True, text=True)
    assert done.returncode == 9
    assert done.stderr == "nvidia-smi: error: the cluster is not running: lab cluster up\n"

"""Failures and recovery, and clusters of other shapes. Each test has its own cluster."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import time

import pytest

from labcore.errors import LabError
from slurmbox import cli, control, health, processes, requests, status
from slurmbox.layout import Layout
from tests.needs import because

from ..conftest import RunningCluster, cluster_processes
from .test_cluster import ORPHAN, daemon, running

pytestmark = pytest.mark.cluster

TRANSFER = """\
import os, socket, time
if os.environ["SLURM_PROCID"] == "0":
    connection = socket.create_server(("", 29600)).accept()[0]
    connection.recv(1)
    begin, total = time.monotonic(), 0
    while data := connection.recv(1 << 20):
        total += len(data)
    print(total * 8 / (time.monotonic() - begin) / 1e6)
else:
    time.sleep(0.5)
    connection, end = socket.create_connection(("slurmnode1", 29600)), time.monotonic() + 1.5
    while time.monotonic() < end:
        connection.sendall(b"x" * (1 << 18))
"""


@pytest.fixture(scope="module")
def spare(make_cluster):
    """A cluster to break."""
    return make_cluster()


@pytest.fixture
def needs_namespaces(spare):
    if health.read_record(spare.layout)["place"]["mode"] != "namespaces":
        pytest.skip(because("namespaces"))


def healthy(cluster):
    return not health.examine(cluster.layout).problems


def lab(cluster, *words):
    """`lab cluster WORDS` in the cluster's workspace, in this process."""
    import argparse

    top = argparse.ArgumentParser()
    cli.add_parser(top.add_subparsers())
    arguments = top.parse_args(["cluster", *words])
    old, os.environ["LAB_HOME"] = os.environ.get("LAB_HOME"), str(cluster.home)
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            arguments.run(arguments)
    finally:
        os.environ.pop("LAB_HOME")
        if old:
            os.environ["LAB_HOME"] = old
    return out.getvalue()


@pytest.mark.parametrize("name", ["munged", "slurmctld", "-N slurmnode1", "-N slurmnode2"])
def test_up_heals_after_any_daemon_was_killed(spare, name):
    spare.run("sbatch --wrap 'sleep 600'")
    for pid in daemon(spare, name):
        os.kill(pid, signal.SIGKILL)
    control.up(spare.home, control.UpOptions())
    assert spare.until(lambda: healthy(spare) and daemon(spare, name), 30)
    assert spare.run("srun -N2 true").returncode == 0
    spare.run("scancel --me")


def test_after_the_supervisor_was_killed_commands_say_so_and_up_brings_the_queue_back(spare):
    assert spare.until(lambda: not spare.run("squeue -h").stdout)
    keep = spare.run("sbatch --parsable --requeue --wrap 'sleep 603'").stdout.strip()
    lose = spare.run("sbatch --parsable --no-requeue --wrap 'sleep 604'").stdout.strip()
    assert spare.until(lambda: len(spare.run("squeue -h -t R").stdout.splitlines()) == 2)
    # Slurm writes its queue to disk some seconds after a change.
    started, kept = time.time(), spare.layout.state / "state" / "job_state"
    assert spare.run(f"scontrol update JobId={keep} Comment=kept").returncode == 0
    assert spare.until(lambda: kept.exists() and kept.stat().st_mtime > started)
    pid, started = health.supervisor(spare.layout)
    os.kill(pid, signal.SIGKILL)
    assert processes.wait_gone(pid, started, 20)
    assert spare.until(lambda: not cluster_processes(spare.home))
    down = spare.run("sinfo", timeout=5)
    assert down.returncode == 1 and "the cluster is not running: lab cluster up" in down.stderr
    assert status.show(spare.home) == 3
    control.up(spare.home, control.UpOptions())
    assert spare.until(lambda: "RUNNING" in spare.run(f"squeue -h -j {keep} -o %T").stdout, 15)
    assert not spare.run(f"squeue -h -j {lose} -t R").stdout
    assert spare.until(lambda: len(running(spare, "sleep 603")) == 1)
    spare.run(f"scancel {keep}")


def test_node_kill_and_start(spare):
    lab(spare, "node", "slurmnode2", "kill")
    assert spare.until(lambda: status.show(spare.home) == 1)
    assert any("slurmnode2" in problem for problem in health.examine(spare.layout).problems)
    lab(spare, "node", "slurmnode2", "start")
    assert spare.until(lambda: healthy(spare), 15)
    with pytest.raises(LabError, match=r"node node9: no such node; .* slurmnode1, slurmnode2"):
        lab(spare, "node", "node9", "kill")


def test_node_cut_and_heal(spare, needs_namespaces):
    lab(spare, "node", "slurmnode2", "cut")
    assert spare.run("srun -w slurmnode1 ping -c1 -W1 slurmnode2 || "
                     "srun -w slurmnode1 python -c 'import socket as s; "
                     "s.create_connection((\"slurmnode2\", 6818), 1)'").returncode
    assert "slurmnode2 has no network" in " ".join(health.examine(spare.layout).problems)
    lab(spare, "node", "slurmnode2", "heal")
    assert spare.until(lambda: healthy(spare), 30)
    assert spare.run("srun -N2 true").returncode == 0


@pytest.mark.stress
def test_a_node_cut_for_long_fails_its_job_and_comes_back(spare, needs_namespaces):
    (spare.home / "long.sh").write_text(
        "#!/bin/bash\nsrun bash -c 'touch here.$SLURMD_NODENAME; exec sleep 605'\n")
    number = spare.run("sbatch --parsable --no-requeue -N2 long.sh").stdout.strip()
    assert spare.until(lambda: len(list(spare.home.glob("here.slurmnode*"))) == 2)
    lab(spare, "node", "slurmnode2", "cut")
    assert spare.until(lambda: "NODE_FAIL" in spare.run(
        f"sacct -n -P -j {number} -o state").stdout, 60)
    control.up(spare.home, control.UpOptions())
    assert spare.until(lambda: healthy(spare) and not running(spare, "sleep 605"), 30)


@pytest.mark.alone
def test_links_have_the_rate_that_was_asked_for_live(spare, needs_namespaces):
    (spare.home / "transfer.py").write_text(TRANSFER)

    def megabits():
        return float(spare.run("srun -N2 python transfer.py").stdout)

    lab(spare, "link", "100mbit")
    assert 60 < megabits() < 130
    assert "link 100mbit" in spare.run([sys.executable, "-c", "from slurmbox import status; "
                                        "import pathlib; status.show(pathlib.Path('.').absolute())"
                                        ]).stdout
    lab(spare, "link", "unlimited")
    assert megabits() > 1000


def test_options_that_contradict_the_running_cluster_are_refused(spare):
    with pytest.raises(LabError, match=r"--nodes 3 \(running: 2\).*lab cluster down first"):
        control.up(spare.home, control.UpOptions(nodes=3))
    with pytest.raises(LabError, match="lab cluster link 1gbit"):
        control.up(spare.home, control.UpOptions(link="1gbit"))
    with pytest.raises(LabError, match=r"--cpus 16 \(running: 32\), --memory 9 \(running: the de"):
        control.up(spare.home, control.UpOptions(cpus=16, memory=9))
    assert control.up(spare.home, control.UpOptions(nodes=2, gpus="v100:2", cpus=32)) is False


def test_nonsense_on_the_control_socket_does_no_harm(spare):
    with pytest.raises(LabError, match="unknown request"):
        requests.send(spare.layout.control_socket, do="rm -rf /")
    assert healthy(spare)


def test_a_mixed_cluster_has_a_partition_per_kind(make_cluster):
    mixed = make_cluster(gpus="a100:4,a10:4", link="10gbit")
    out = mixed.run("srun -p a10 --gres=gpu:a10:4 bash -c 'echo $SLURMD_NODENAME "
                    "$CUDA_VISIBLE_DEVICES'; srun -C a100 --gres=gpu:3 bash -c "
                    "'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'; "
                    "srun -p a100 hostname : -p a10 hostname | sort")
    assert out.stdout.splitlines()[:2] == ["slurmnode2 0,1,2,3", "slurmnode1 0,1,2"], out
    assert len(out.stdout.splitlines()) == 4


def test_loopback_mode_says_so_and_works(make_cluster, capsys):
    here = make_cluster(mode="loopback")
    assert "loopback mode: all nodes share" in capsys.readouterr().out
    twin = subprocess.Popen(["sleep", "605"], env={  # a process of another cluster's first job
        "SLURM_JOB_ID": "1", "SLURMD_NODENAME": "slurmnode1", "LAB_CLUSTER_RUN": "/tmp/lab-other"})
    try:
        done = here.run("srun -N2 -l bash -c "
                        "'echo $SLURM_JOB_ID $SLURMD_NODENAME $GLOO_SOCKET_IFNAME'")
        assert here.until(lambda: not here.run("squeue -h").stdout)
        assert twin.poll() is None  # the epilog spared it
    finally:
        twin.kill()
        twin.wait()
    assert sorted(done.stdout.splitlines()) == ["0: 1 slurmnode1 lo", "1: 1 slurmnode2 lo"]
    with pytest.raises(LabError, match="no link to shape"):
        lab(here, "link", "1gbit")
    with pytest.raises(LabError, match="no network link of its own"):
        lab(here, "node", "slurmnode1", "cut")
    (here.home / "orphan.py").write_text(ORPHAN)
    here.run("sbatch --wrap 'srun python orphan.py'")
    assert here.until((here.home / "orphan.ready").exists)
    os.kill(health.supervisor(here.layout)[0], signal.SIGKILL)
    control.up(here.home, control.UpOptions())
    assert here.until(lambda: healthy(here), 15)
    control.down(here.home)
    assert not cluster_processes(here.home)


def test_link_in_loopback_mode_is_refused(tmp_path):
    with pytest.raises(LabError, match="loopback mode has no links to shape"):
        control.up(tmp_path, control.UpOptions(mode="loopback", link="1gbit"))
    control.down(tmp_path)


def test_a_workspace_with_blanks_and_a_very_long_path(tmp_path):
    home = tmp_path / "my work" / ("x" * 120) / ("y" * 120)
    control.up(home, control.UpOptions(nodes=1))
    here = RunningCluster(home)
    try:
        assert here.run("srun pwd").stdout.strip() == str(home)
        assert here.batch("-o /dli/out.txt --wrap pwd") == "COMPLETED"
    finally:
        control.down(home)
    assert not cluster_processes(home)


@pytest.mark.parametrize("delay", [0.05, 0.15, 0.25, 0.4])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_up_can_be_repeated_or_undone(tmp_path, delay, number):
    command = [sys.executable, "-c", "import sys, pathlib; from slurmbox import control; "
               "control.up(pathlib.Path(sys.argv[1]), control.UpOptions())", str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    first.send_signal(number)
    first.wait()
    if delay in (0.15, 0.4):
        control.up(tmp_path, control.UpOptions())
        assert RunningCluster(tmp_path).run("srun -N2 true").returncode == 0
    control.down(tmp_path)
    assert not cluster_processes(tmp_path)
    control.down(tmp_path)  # twice does no harm


def test_two_ups_at_once_make_one_cluster(tmp_path):
    command = [sys.executable, "-c", "import sys, pathlib; from slurmbox import control; "
               "control.up(pathlib.Path(sys.argv[1]), control.UpOptions())", str(tmp_path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("the cluster is up" in text for text in said) == 1
    assert sum("already up" in text for text in said) == 1
    control.down(tmp_path)
    assert not cluster_processes(tmp_path)


def test_down_ends_shells_that_wait_inside(make_cluster):
    here = make_cluster(nodes=1)
    import slurmbox as public

    shell = subprocess.Popen(["salloc", "sleep", "602"], env=public.environment(here.home),
                             stderr=subprocess.DEVNULL, start_new_session=True)
    assert here.until(lambda: running(here, "sleep 602"))
    control.down(here.home)
    assert shell.wait(5) != 0
    assert not cluster_processes(here.home)
    assert Layout(here.home).record.exists() is False

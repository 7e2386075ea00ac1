"""Slurm's commands on the shared default cluster."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurmbox import control, health, install, processes
from tests.needs import because

pytestmark = pytest.mark.cluster

CLASSIC = """\
#!/bin/bash
#SBATCH --job-name=dli_2_nodes
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH -o /dli/megatron/logs/%j.out
#SBATCH -e /dli/megatron/logs/%j.err
set -x -e
clear;
NODES=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
export MASTER_ADDR=${NODES[0]}
srun --jobid $SLURM_JOBID bash -c 'echo rank $SLURM_PROCID of $MASTER_ADDR on $(hostname)' \
 2>&1 | tee -a /dli/megatron/logs/log.txt
"""

# A process that leaves its family, its session and its group.
ORPHAN = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
open("orphan.ready", "w").close()
time.sleep(600)
"""


def running(cluster, text):
    """Processes of this cluster whose command line has `text`."""
    collected = []
    for pid in processes.pids_in_cluster(cluster.layout.run.name):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if text.encode() in line:
            collected.append(pid)
    return collected


def daemon(cluster, name):
    pid = int(cluster.layout.init_pid.read_text().split()[0])
    import psutil

    collected = []
    for child in psutil.Process(pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended meanwhile, or a zombie
            collected += [child.pid] * (name in " ".join(child.cmdline()))
    return collected


def test_sinfo_shows_two_idle_nodes_with_two_v100_each(cluster):
    nodes = ["slurmnode1 idle 32 gpu:v100:2 slurmpar", "slurmnode2 idle 32 gpu:v100:2 slurmpar"]
    assert cluster.until(  # the last test's job may still be ending
        lambda: cluster.run("sinfo -h -N -o '%N %t %c %G %R'").stdout.splitlines() == nodes)


def test_nodes_have_host_names_and_addresses_of_their_own(cluster):
    if health.read_record(cluster.layout)["place"]["mode"] != "namespaces":
        pytest.skip(because("namespaces"))
    out = cluster.run("srun -N2 -l bash -c 'hostname; getent hosts slurmnode2 | cut -d\" \" -f1'")
    assert sorted(out.stdout.split("\n")[:4]) == [
        "0: 10.77.0.12", "0: slurmnode1", "1: 10.77.0.12", "1: slurmnode2"]


def test_gpus_are_given_out_one_by_one(cluster):
    out = cluster.run("srun --gres=gpu:v100:1 bash -c 'echo $CUDA_VISIBLE_DEVICES'; "
                      "srun --gpus-per-node=2 bash -c 'echo $CUDA_VISIBLE_DEVICES'")
    assert out.stdout.split() == ["0", "0,1"]
    assert "configuration is not available" in cluster.run("srun --gres=gpu:a100:1 true").stderr


def test_a_classic_script_runs_unchanged(cluster):
    (cluster.home / "megatron/logs").mkdir(parents=True, exist_ok=True)
    (cluster.home / "classic.sh").write_text(CLASSIC)
    done = cluster.run("unset TERM; sbatch --wait classic.sh")
    number = done.stdout.split()[-1]
    logs = cluster.home / "megatron/logs"
    assert done.returncode == 0, (logs / f"{number}.err").read_text()
    lines = sorted((logs / "log.txt").read_text().splitlines())
    assert [line.rpartition(" on ")[0] for line in lines] == [
        "rank 0 of slurmnode1", "rank 1 of slurmnode1"]
    assert cluster.run(f"sacct -n -P -j {number} -o jobname,alloccpus,state,exitcode"
                       ).stdout == "dli_2_nodes|64|COMPLETED|0:0\n"


@pytest.mark.parametrize("export", ["ALL", "NONE"])
def test_a_jobs_environment_is_whole(cluster, export):
    names = "LAB_HOME SLURM_CONF GLOO_SOCKET_IFNAME NCCL_SOCKET_IFNAME TERM"
    state = cluster.batch(f"--export={export} -o env.txt --wrap "
                          f"'for name in {names}; do printenv $name; done; command -v python; "
                          "command -v scontrol; clear >/dev/null && echo cleared'")
    lines = (cluster.home / "env.txt").read_text().splitlines()
    assert state == "COMPLETED" and lines[-1] == "cleared"
    assert lines[0] == str(cluster.home)
    assert lines[-3:-1] == [f"{Path(sys.executable).parent}/python",
                            f"{cluster.layout.bin}/scontrol"]


def test_what_the_user_set_stays(cluster):
    done = cluster.run("GLOO_SOCKET_IFNAME=lo srun printenv GLOO_SOCKET_IFNAME")
    assert done.stdout == "lo\n"


def test_exit_codes_and_input_pass_through(cluster):
    assert cluster.run("srun bash -c 'exit 7'").returncode == 7
    assert cluster.run("echo hello | srun cat").stdout == "hello\n"
    assert cluster.run("sbatch --wait --wrap 'exit 5'").returncode == 5
    assert cluster.run("sacct -n -P -o state,exitcode | tail -1").stdout == "FAILED|5:0\n"


def test_the_folder_one_is_in_is_kept(cluster):
    (cluster.home / "a folder").mkdir()
    done = cluster.run("cd 'a folder' && srun pwd")
    assert done.stdout.strip() == str(cluster.home / "a folder")


def test_salloc_opens_a_shell_that_reaches_its_nodes(cluster):
    done = cluster.run("salloc -N2 bash -c 'srun hostname; squeue -h -o %D; cat <(echo subst)'")
    assert done.returncode == 0
    assert len(done.stdout.split()) == 4 and done.stdout.split()[-2:] == ["2", "subst"]


def test_lab_cluster_inside_a_job_does_no_harm(cluster):
    for action in ("down", "up", "status"):
        done = cluster.run(f"srun lab cluster {action}")
        assert done.returncode == 1
        assert "this shell is inside the cluster (a job or salloc): run this command outside" in (
            done.stderr)
    assert cluster.run("srun -N2 true").returncode == 0


def test_pty_gives_a_terminal(cluster):
    done = cluster.run("script -qec \"srun --pty bash -c 'tty && exit 4'\" /dev/null")
    assert "/dev/pts/" in done.stdout and done.returncode == 4


def test_ctrl_c_ends_srun_and_its_tasks(cluster):
    import slurmbox as public

    job = subprocess.Popen(["srun", "-N2", "sleep", "601"], env=public.environment(cluster.home),
                           stderr=subprocess.DEVNULL, start_new_session=True)
    assert cluster.until(lambda: len(running(cluster, "sleep 601")) >= 3)
    for _ in range(2):
        os.killpg(job.pid, signal.SIGINT)
        time.sleep(0.2)
    assert job.wait(20) != 0
    assert cluster.until(lambda: not running(cluster, "sleep 601"))


def test_scancel_leaves_no_orphan(cluster):
    (cluster.home / "orphan.py").write_text(ORPHAN)
    number = cluster.run("sbatch --parsable --wrap 'srun python orphan.py'").stdout.strip()
    assert cluster.until((cluster.home / "orphan.ready").exists)
    assert len(running(cluster, "orphan.py")) >= 3
    cluster.run(f"scancel {number}")
    assert cluster.until(lambda: not running(cluster, "orphan.py"), 10)
    assert cluster.until(lambda: "CANCELLED" in cluster.run(
        f"sacct -n -P -j {number} -o state").stdout)


def test_the_epilog_finds_what_a_killed_slurmstepd_leaves(cluster):
    (cluster.home / "orphan.ready").unlink(missing_ok=True)
    (cluster.home / "orphan.py").write_text(ORPHAN)
    number = cluster.run("sbatch --parsable --wrap 'python orphan.py'").stdout.strip()
    assert cluster.until((cluster.home / "orphan.ready").exists)
    for pid in running(cluster, f"slurmstepd: [{number}.batch]"):
        os.kill(pid, signal.SIGKILL)
    cluster.run(f"scancel {number}")
    assert cluster.until(lambda: not running(cluster, "orphan.py"), 15)
    assert cluster.until(lambda: not cluster.run("squeue -h").stdout)


def test_jobs_that_name_no_memory_run_side_by_side(cluster):
    first, second = (cluster.run("sbatch --parsable -n2 --wrap 'sleep 30'").stdout.strip()
                     for _ in range(2))
    assert cluster.until(lambda: cluster.run("squeue -h -t R -o %A").stdout.split()
                         == [second, first] or
                         {first, second} <= set(cluster.run("squeue -h -t R -o %A").stdout.split()))
    cluster.run(f"scancel {first} {second}")
    assert cluster.until(lambda: not cluster.run("squeue -h").stdout)


def test_a_step_over_its_memory_is_killed_with_a_message(cluster):
    done = cluster.run("srun --mem=200M python -c 'b = b\"x\" * 10**9; import time; "
                       "time.sleep(30)'")
    assert done.returncode and "exceeded memory limit" in done.stderr


def test_more_nodes_than_there_are(cluster):
    done = cluster.run("srun -N3 true", timeout=20)
    assert done.returncode and "Node count specification invalid" in done.stderr


@pytest.mark.parametrize(("size", "remedy"), [
    ("-N 3", "--nodes 3 --gpus v100:2"), ("--gres=gpu:v100:8", "--nodes 2 --gpus v100:8"),
    ("-c 33", "--nodes 2 --gpus v100:2 --cpus 33"), ("-n 70", "--nodes 3 --gpus v100:2"),
    ("--mem=999G", "--nodes 2 --gpus v100:2 --memory 999")])
def test_a_job_larger_than_the_cluster_is_told_how_to_start_one_that_it_fits(cluster, size, remedy):
    done = cluster.run(f"sbatch {size} --wrap hostname")
    assert done.returncode == 1
    assert "sbatch: error: " in done.stderr  # Slurm's own words first
    assert done.stderr.splitlines()[-1] == (
        f"sbatch: for more: lab cluster down; lab cluster up {remedy}")


@pytest.mark.parametrize(("words", "remedy"), [
    ("srun -N3 true", "--nodes 3 --gpus v100:2"),
    ("salloc --no-shell --gres=gpu:8", "--nodes 2 --gpus v100:8"),
    ("salloc -c33 true", "--nodes 2 --gpus v100:2 --cpus 33"),
    ("srun -t 1 --mem 999G true", "--nodes 2 --gpus v100:2 --memory 999")])
def test_so_are_srun_and_salloc(cluster, words, remedy):
    done = cluster.run(words, timeout=60)
    name = words.split()[0]
    assert done.returncode == 1 and done.stdout == ""
    *of_slurm, advice = done.stderr.splitlines()
    assert any(line.startswith(f"{name}: error: ") for line in of_slurm)
    assert advice == f"{name}: for more: lab cluster down; lab cluster up {remedy}"


def test_a_job_that_fits_replaces_the_shell_of_srun_and_its_own_words_are_no_request(cluster):
    """Or a signal would not reach it."""
    done = cluster.run("echo typed | srun -N1 -n1 bash -c 'cat; echo $0 >&2; exit 3' -N9")
    assert (done.returncode, done.stdout) == (3, "typed\n") and "-N9" in done.stderr
    assert "asks for" not in done.stderr
    started = subprocess.Popen([cluster.layout.bin / "srun", "-N1", "sleep", "603"],
                               cwd=cluster.home, stderr=subprocess.DEVNULL)
    assert cluster.until(lambda: Path(f"/proc/{started.pid}/exe").readlink().name == "srun")
    started.terminate()
    started.wait(60)
    assert cluster.until(lambda: not cluster.run("squeue --noheader").stdout)


def test_pmix_is_not_offered_without_its_library(cluster):
    done = cluster.run("srun --mpi=list")
    assert "pmi2" in done.stdout + done.stderr
    if install.require_slurm().unusable_plugins:
        assert "pmix" not in done.stdout + done.stderr


def test_sbatch_says_no_more_than_slurm_about_other_mistakes(cluster):
    done = cluster.run("sbatch nowhere.sh")
    assert done.returncode == 1
    assert done.stderr == "sbatch: error: Unable to open file nowhere.sh\n"
    done = cluster.run("sbatch -W -o /dev/null <<< $'#!/bin/bash\\nexit 3'")
    assert done.returncode == 3 and done.stdout.startswith("Submitted batch job ")


def test_the_light_sacct_names_what_it_lacks(cluster):
    done = cluster.run("sacct -o JobID,MaxRSS")
    assert done.returncode == 1 and "'MaxRSS'" in done.stderr and "--accounting" in done.stderr


def test_status_is_healthy_and_up_says_so(cluster, capsys):
    from slurmbox import status

    assert cluster.until(lambda: not health.examine(cluster.layout).problems)
    assert status.show(cluster.home) == 0
    shown = capsys.readouterr().out
    assert re.search(r"slurmnode2 +idle +\S+ +32 +\d+ GiB +2 x v100", shown)
    assert "queue: empty" in shown
    assert control.up(cluster.home, control.UpOptions()) is False
    assert "already up" in capsys.readouterr().out


def test_the_other_nodes_see_a_server_by_its_name(cluster):
    """torch.distributed's rendezvous: rank 0 listens, rank 1 resolves its name and connects."""
    (cluster.home / "meet.py").write_text(
        "import os, socket, time\n"
        "if os.environ['SLURM_PROCID'] == '0':\n"
        "    s = socket.create_server(('', 29555)); print(s.accept()[0].recv(9).decode())\n"
        "else:\n"
        "    time.sleep(1); socket.create_connection(('slurmnode1', 29555)).sendall(b'met')\n")
    assert cluster.run("srun -N2 python meet.py").stdout == "met\n"

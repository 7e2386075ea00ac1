"""Jobs that cannot go on, or must not: they end soon, say why, and leave no process behind."""

import os
import re
import signal
import uuid
from dataclasses import dataclass, field

import psutil
import pytest

from slurmbox import processes

from ..conftest import RunningCluster
from ..labs.warm import client

pytestmark = pytest.mark.cluster

ENDLESS = ("--hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
           "--train-iters 1000000 --log-interval 1 --eval-iters 0 --save-interval 1000000 ")
# Runs a script on a node where another program has the script's port.
HOLD = ("import os, socket, subprocess, sys; s = socket.socket(); "
        "s.bind(('', 20000 + int(os.environ['SLURM_JOB_ID']) % 10000)); s.listen(); "
        "sys.exit(subprocess.run(['bash', *sys.argv[1:]]).returncode)")
JOBS = {
    "killed": "code/dp_two_nodes.sh $ENDLESS",
    "hung": "code/resume.sh $ENDLESS --distributed-timeout-minutes 0.3",
    "port": "--ntasks-per-node=2 --cpus-per-task=2 --wrap "
            "'python -c \"$HOLD\" code/resume.sh $ENDLESS'",
    "launcher_port": "--nodes=2 --ntasks-per-node=1 --cpus-per-task=4 --wrap "
                     "'python -c \"$HOLD\" code/dp_two_nodes.sh $ENDLESS'",
    "duration": "code/dp_single_node.sh $ENDLESS --exit-duration-in-mins 0.02",
    "interval": "code/tp_single_node.sh $ENDLESS --exit-interval 3",
}


@dataclass
class Job:
    cluster: RunningCluster
    name: str
    mark: str = field(default_factory=lambda: f"FAILING_JOB={uuid.uuid4()}")
    number: str = ""

    def submit(self, command, **environment):
        done = self.cluster.run(
            f"sbatch --parsable --job-name={self.name} --export=ALL,{self.mark} "
            f"--output=megatron/logs/%x_%j.txt {command}", ENDLESS=ENDLESS, HOLD=HOLD,
            **environment)
        assert done.returncode == 0, done.stderr
        self.number = done.stdout.strip()

    @property
    def log(self):
        path = self.cluster.home / f"megatron/logs/{self.name}_{self.number}.txt"
        return path.read_text() if path.exists() else ""

    def state(self):
        return self.cluster.run(
            f"sacct -n -X -P -j {self.number} -o State,ExitCode").stdout.strip()

    def left(self):
        return processes.pids_with_variable(self.mark)

    def trains(self):
        assert self.cluster.until(lambda: re.search(r"^ iteration +2/", self.log, re.M), 180), (
            self.log[-3000:])

    def send(self, rank, number):
        """Send a signal to one rank. A warm one's client has the same environment."""
        (pid,) = [pid for pid in processes.pids_with_variable(f"RANK={rank}") if pid in self.left()
                  and client.__file__ not in psutil.Process(pid).cmdline()]
        os.kill(pid, number)

    def ends(self, seconds):
        """The state it ends in; no process of it is left then."""
        gone = self.cluster.until(lambda: not self.left(), seconds)
        assert gone, (self.left(), self.log[-3000:])
        assert self.cluster.until(lambda: not self.state().startswith(("RUNNING", "COMPLETING")), 5)
        return self.state()


@pytest.fixture(scope="module")
def jobs(course, warm):
    """One rank of one job is killed, and one of another stopped. Then the others are submitted.

    Slurm ends a job once a task has failed. The killed rank's launcher has a few seconds to report
    it: ranks that started cold take that long to end, and warm ones wait.
    """
    made = {name: Job(course, name) for name in JOBS}
    made["killed"].submit(JOBS["killed"], SECONDS_TO_FAIL="3")
    made["killed"].trains()
    made["killed"].send(3, signal.SIGKILL)
    made["hung"].submit(JOBS["hung"])
    made["hung"].trains()
    made["hung"].send(1, signal.SIGSTOP)
    for name in [name for name in made if name not in ("killed", "hung")]:
        made[name].submit(JOBS[name])
    yield made
    course.run("scancel --user=$USER " + " ".join(job.number for job in made.values()))
    assert course.until(lambda: not any(job.left() for job in made.values()), 40)


def saved(course, name):
    folder = course.home / f"megatron/checkpoints/{name}"
    return int((folder / "latest_checkpointed_iteration.txt").read_text())


def test_a_killed_rank_takes_the_job_down_and_is_named(jobs):
    """On the other node, too."""
    job = jobs["killed"]
    assert job.ends(60).startswith("FAILED")
    assert re.search(r"rank +: 3 \(local_rank: 1\)\s+exitcode +: -9", job.log), job.log[-3000:]
    assert re.search(r"^\[rank [012]\] error: lost contact with another rank \(.*\); its own "
                     r"message says why$", job.log, re.M), job.log[-3000:]


def test_a_rank_that_hangs_ends_the_job_within_the_timeout(jobs):
    job = jobs["hung"]
    assert job.ends(0.3 * 60 + 60).startswith("FAILED")
    assert re.search(r"^\[rank 0\] error: lost contact with another rank \(Timed out waiting "
                     r"18000ms for (recv|send) operation.*\); its own message says why$",
                     job.log, re.M), job.log[-3000:]
    assert "task 0: Exited with exit code 1" in job.log


def test_a_taken_port_is_told_with_a_free_one(jobs):
    job = jobs["port"]
    assert job.ends(180).startswith("FAILED")
    port = 20000 + int(job.number) % 10000
    assert re.search(rf"error: MASTER_PORT {port} on slurmnode\d is taken by another program; a "
                     r"free one: MASTER_PORT=\d+$", job.log, re.M), job.log[-3000:]


def test_a_port_that_the_launcher_finds_taken_is_told(jobs):
    """And the launcher on the other node does not wait for the first."""
    job = jobs["launcher_port"]
    assert job.ends(180).startswith("FAILED")
    port = 20000 + int(job.number) % 10000
    assert re.search(rf"port: {port}, .*EADDRINUSE, message: address already in use", job.log)


@pytest.mark.parametrize(("name", "why"), [("duration", r"after 0\.\d+ minutes"),
                                           ("interval", "at iteration 3")])
def test_a_job_that_stops_early_saves_and_succeeds(course, jobs, name, why):
    assert jobs[name].ends(180) == "COMPLETED|0:0", jobs[name].log[-3000:]
    log = jobs[name].log
    assert re.search(rf"^\[exiting program {why}\] datetime: ", log, re.M)
    last = re.findall(r"^ iteration +(\d+)/", log, re.M)[-1]
    assert saved(course, name) == int(last) > 0
    assert f"successfully saved checkpoint at iteration {int(last):7d} to " in log

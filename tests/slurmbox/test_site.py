"""The labs' scripts, unchanged, on a Slurm that is not the course's: another partition, no default
one, an account and GPUs that it insists on, no task prolog of ours; and in a container."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labcore import shipping, workspace
from slurmbox import config, control
from tests.jobs.test_jobs import SHORT
from tests.labs.warm.launch import more_servers
from virtualgpu.core.slots import INSTEAD_OF_CPU

pytestmark = pytest.mark.cluster

LAB = Path(sys.executable).with_name("lab")
RULES = """\
function slurm_job_submit(job, partitions, uid)
    if job.account ~= "course" then
        slurm.log_user("this site wants an account")
        return slurm.ERROR
    end
    if job.tres_per_node == nil then
        slurm.log_user("this site wants GPUs")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
PROFILE = """\
[slurm]
partition = "accel"
account = "course"
gpus-per-node = "v100:2"
time = 30
[trainer]
virtual-gpu = "v100"
"""
# What a container does as far as the profile goes: another PATH, no wrappers of Slurm's commands.
APPTAINER = """\
#!/bin/sh
echo "$(hostname) $*" >>"$LAB_HOME/apptainer"
while [ "$1" != "$LAB_HOME/labs.sif" ]; do shift; done
shift
PATH={programs}:/usr/bin:/bin exec "$@"
"""


@pytest.fixture(scope="module")
def site(make_cluster):
    """That site's cluster."""
    def site_conf(layout, *others):
        (layout.state / "etc" / "job_submit.lua").write_text(RULES)
        lines = [line for line in ours(layout, *others).splitlines() if "TaskProlog" not in line]
        text = "\n".join([*lines, "JobSubmitPlugins=lua", ""])
        return text.replace(f"={config.PARTITION} ", "=accel ").replace("Default=YES", "Default=NO")

    ours = config.slurm_conf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "slurm_conf", site_conf)
        running = make_cluster()
    assert control.health.examine(running.layout).problems == []
    return running


@pytest.fixture(scope="module")
def commands(site, tmp_path_factory):
    """The folder of that site's commands."""
    folder = tmp_path_factory.mktemp("site")
    for command in site.layout.bin.iterdir():
        (folder / command.name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / command.name).chmod(0o755)
    return folder


class Student:
    """A workspace of its own, and a shell as `lab cluster env` makes it."""

    def __init__(self, home, commands):
        self.home, self.commands = home, commands
        kept = {name: value for name, value in os.environ.items() if "SLURM" not in name}
        self.environment = kept | {"LAB_HOME": str(home), "PATH": f"{commands}:/usr/bin:/bin"}

    def run(self, command, good=True):
        done = subprocess.run(["bash", "-c", f'eval "$({LAB} cluster env)"; {command}'],
                              cwd=self.home, env=self.environment, text=True, timeout=170,
                              capture_output=True, stdin=subprocess.DEVNULL)
        assert (done.returncode == 0) is good, done.stdout + done.stderr
        return done.stdout if good else done.stderr

    def profile(self, text):
        (self.home / "site.toml").write_text(text)
        return self.run("lab cluster use site")

    def job(self, script, *flags):
        """Submit a script and wait for its end: what Slurm knows of it, and its log."""
        number = self.run(f"sbatch --parsable code/{script}.sh {' '.join(flags)}").strip()
        known = self.run(f"while squeue -h -j {number} | grep -q .; do sleep 0.2; done; "
                         f"scontrol show job -o {number}")
        return (known, (self.home / f"megatron/logs/{script}_{number}.txt").read_text())


@pytest.fixture(scope="module")
def workplace(course, commands, tmp_path_factory):
    home = tmp_path_factory.mktemp("student")
    (home / "data").symlink_to(course.home / "data")
    shipping.make_workspace(home)
    return home


@pytest.fixture
def student(workplace, commands):
    student = Student(workplace, commands)
    student.profile(PROFILE)
    return student


def test_without_its_profile_the_site_refuses_a_job(student):
    student.profile('[slurm]\npartition = "accel"\n')
    assert "this site wants an account" in student.run("sbatch code/hybrid.sh", good=False)


def test_srun_and_salloc_obey_and_a_command_line_is_stronger(student):
    show = "bash -c 'echo $SLURM_JOB_PARTITION $SLURM_JOB_ACCOUNT $SLURM_GPUS_ON_NODE'"
    assert student.run(f"srun {show}") == "accel course 2\n"
    assert student.run(f"salloc --nodes=1 srun {show}") == "accel course 2\n"
    assert student.run(f"srun --gpus-per-node=1 {show}") == "accel course 1\n"
    assert "accel" in student.run("lab cluster status")


@pytest.fixture
def warm_programs(site, warm_nodes, tmp_path):
    """A folder with a torchrun whose ranks start warm."""
    with more_servers(warm_nodes, site) as started, replace(started, bin=tmp_path).commands():
        yield tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("is_warm", [True, pytest.param(False, marks=pytest.mark.stress)],
                         ids=["warm", "cold"])
def test_a_shipped_script_trains_there_in_a_container(request, student, is_warm):
    programs = f"{request.getfixturevalue('warm_programs')}:" if is_warm else ""
    (student.commands / "apptainer").write_text(
        APPTAINER.format(programs=f"{programs}{LAB.parent}"))
    (student.commands / "apptainer").chmod(0o755)
    called, image = student.home / "apptainer", student.home / "labs.sif"
    called.unlink(missing_ok=True)
    image.touch()
    student.profile(PROFILE + f'[container]\nstart = "apptainer"\nimage = "{image}"\n'
                    'mounts = ["/srv"]\n')
    known, log = student.job("dp_two_nodes", SHORT)
    for field in ("Partition=accel", "Account=course", "TimeLimit=00:30:00", "NumNodes=2",
                  "TresPerNode=gres:gpu:v100:2", "JobState=COMPLETED"):
        assert f" {field} " in known
    assert "using world size: 4, data-parallel-size: 4" in log
    calls = called.read_text().splitlines()
    start = f"exec --nv --bind {student.home},{workspace.CHECKOUT},/srv {image} torchrun"
    assert len(calls) == 2 and all(start in call for call in calls)
    assert {call.split()[0] for call in calls} == {"slurmnode1", "slurmnode2"}
    (number,) = re.findall(r"JobId=(\d+)", known)
    ranks = student.home / ".cluster" / "ranks" / number
    assert sorted(path.name for path in ranks.iterdir()) == [f"{n}.json" for n in range(4)]
    top = student.run(f"lab top --once {number}")
    assert len(re.findall(r"slurmnode[12] .* done +3/3 ", top)) == 4


@pytest.mark.stress
def test_a_script_for_the_nodes_virtual_cards_finds_the_profile_s(student):
    known, log = student.job("virtual_v100", SHORT)
    assert " JobState=COMPLETED " in known and "TresPerNode=gres:gpu:v100:2" in known
    assert "using virtual v100-sxm2-16gb " in log


@pytest.mark.stress
def test_scripts_that_say_cpu_go_to_the_site_s_gpus(student):
    """Here there are none, and the log says so; on a machine with CUDA it is what is used."""
    student.profile(PROFILE + 'device = "cuda"\n')
    _, log = student.job("dp_single_node", SHORT)
    assert f"{INSTEAD_OF_CPU}=cuda" in log

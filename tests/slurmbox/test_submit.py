"""`lab submit` on a real cluster with two kinds of GPUs: one job, and jobs that join each other."""

import json
import re
import shutil

import pytest

from labcore import shipping
from labkit.check.record import record
from tests.labs.warm.launch import more_servers

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

TINY = """layers = 3
hidden-size = 32
attention-heads = 4
sequence-length = 32
partition = "2-1"
model = "small"
cluster = "a100:1x1,a10:1x1"
pipeline-parallel = 2
global-batch-size = 2
micro-batch-size = 1
iterations = 2
"""


@pytest.fixture(scope="module")
def mixed(make_cluster, course_data, warm_nodes):
    made = make_cluster(gpus="a100:1,a10:1")
    shipping.make_workspace(made.home, lambda line: None)
    shutil.copytree(course_data / "data", made.home / "data", dirs_exist_ok=True)
    with more_servers(warm_nodes, made) as started, started.commands():
        yield made


@pytest.fixture
def lab(mixed, monkeypatch, call):
    monkeypatch.setenv("LAB_HOME", str(mixed.home))
    return call


def ended(mixed, number):
    done = []

    def over():
        done[:] = mixed.run(f"squeue -h -t all -j {number} -o %T").stdout.split()
        return not set(done) & {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}

    assert mixed.until(over, 200)
    return set(done)


def check(mixed, lab, number):
    """The job trained, stage 0 on the A100 node and stage 1 on the A10 node."""
    log = next((mixed.home / "megatron" / "logs").glob(f"*_{number}.txt")).read_text()
    assert ended(mixed, number) == {"COMPLETED"}, log
    (job,) = json.loads(lab("top", number, "--json"))["jobs"]
    assert [(rank["word"], rank["node"], rank["device"]) for rank in job["ranks"]] == [
        ("done", "slurmnode1", "virtual a100-80gb"), ("done", "slurmnode2", "virtual a10")]
    assert {one["what"]: one["verdict"] for one in job["verdicts"]} == {
        "state": "-", "GPU processes": "-", "stderr": "ok", "configuration": "ok"}
    assert {"--balance", "--train-iters", "ranks"} <= {
        one["what"] for one in job["settings"] if one["requested"] == one["runs"]}
    assert [(one["node"], one["gpus"][0]["name"]) for one in job["nodes"]] == [
        ("slurmnode1", "NVIDIA A100-SXM4-80GB"), ("slurmnode2", "NVIDIA A10")]
    folder = mixed.home / "megatron" / "logs" / number
    assert {one.name for one in folder.iterdir()} >= {
        f"slurmnode{node}.{kind}" for node in (1, 2) for kind in ("out", "err", "gpu")}
    assert "iteration        2/       2" in (folder / "slurmnode2.out").read_text()
    return re.search(r"per iteration \(ms\): ([\d.]+)", (folder / "slurmnode2.out").read_text())[1]


def test_a_heterogeneous_job_and_joined_ones_that_start_in_either_order(mixed, lab):
    path = mixed.home / "run.toml"
    path.write_text(TINY)
    number = re.search(r"^job (\d+): ", lab("submit", str(path)), re.MULTILINE)[1]
    ended(mixed, number)
    times = {check(mixed, lab, number)}

    path.write_text(TINY + 'job = "joined"\n')
    mixed.run("rm code/run.sh")
    lab("submit", str(path), "--dry-run")
    assert not (mixed.home / "code" / "run.master.sh").exists()
    said = lab("submit", str(path))
    master, joining = re.findall(r"^job (\d+): ", said, re.MULTILINE)
    assert f"sbatch code/run.join1.sh {master}, joins job {master}" in said
    assert ended(mixed, joining) == ended(mixed, master) == {"COMPLETED"}
    times.add(check(mixed, lab, master))

    master = mixed.run("sbatch --parsable --hold code/run.master.sh").stdout.strip()
    joining = mixed.run(f"sbatch --parsable code/run.join1.sh {master}").stdout.strip()
    assert mixed.until(lambda: (mixed.home / f"megatron/logs/{master}/joined.1").exists(), 30)
    mixed.run(f"scontrol release {master}")
    assert ended(mixed, joining) == ended(mixed, master) == {"COMPLETED"}
    times.add(check(mixed, lab, master))
    assert len(times) == 1

    assert mixed.batch(f"-o late.txt code/run.join1.sh {master}") == "FAILED"
    assert f"job {master}, which this job joins, has ended" in (mixed.home / "late.txt").read_text()


def test_nothing_is_queued_or_written_on_an_error(mixed, lab):
    path = mixed.home / "wrong.toml"
    path.write_text(TINY.replace("a10:1x1", "a10:1x2").replace("pipeline-parallel = 2",
                    "pipeline-parallel = 3").replace('"2-1"', '"1-1-1"'))
    before = mixed.run("squeue -h -t all | wc -l").stdout
    assert "the run needs 2 node(s) of 1 x a10" in lab("submit", str(path), code=1)
    assert mixed.run("squeue -h -t all | wc -l").stdout == before
    assert not (mixed.home / "code" / "wrong.sh").exists()


STEP = ("echo STEP $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURM_NTASKS $SLURM_NNODES "
        "$SLURM_JOB_NUM_NODES $SLURM_STEP_NUM_NODES $SLURMD_NODENAME $SLURM_GPUS_ON_NODE "
        "$SLURM_CPUS_ON_NODE $(scontrol show hostnames | paste -sd,)")
COMPONENTS = f"""#!/bin/bash
#SBATCH --job-name=components
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=a100:1
#SBATCH --output=components.txt
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=a10:1
env | grep -E "^SLURM_(HET_SIZE|N|TASKS_PER_NODE|(CPUS|GPUS)_(ON|PER)|JOB_N|[A-Z_]*_HET_GROUP_)" |
    grep -v -e PACK -e MEM_PER -e JOB_ID -e NODE_ALIASES -e NODEID | sort
for options in "" --het-group=0,1 --het-group=1,0 --het-group=1 "--het-group=1 -n1"; do
    echo "$options"
    srun $options bash -c '{STEP}' | sort
done
echo :
srun bash -c '{STEP}' : -n1 bash -c '{STEP}' | sort
for options in --het-group=2 --het-group=0-2 --het-group=x "--het-group=0,1 -N2 -n2" \\
    "--het-group=0,1 --cpus-per-task=2" "--het-group=0,1 -w slurmnode2"; do
    srun $options true 2>/dev/null || echo "refused: $options"
done
"""


def test_script_checks_see_components_as_slurm_does(mixed):
    """labkit.check records scripts with stand-ins of srun, in an environment like sbatch's."""
    path = mixed.home / "components.sh"
    path.write_text(COMPONENTS)
    assert mixed.batch(path.name) == "COMPLETED"
    # On a busy machine, srun reports that it waits for the step before.
    real = [line for line in (mixed.home / "components.txt").read_text().splitlines()
            if not line.startswith("srun: ")]
    assert record(mixed.home, path.name)["output"].splitlines() == real

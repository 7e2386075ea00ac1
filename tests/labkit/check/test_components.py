"""Heterogeneous jobs: components of directives, and steps that span them, as Slurm 22.05 has them.

tests/slurmbox/test_submit.py runs such a job on a real cluster.
"""

import functools
import tempfile
import time
from pathlib import Path

import pytest

from lab.submit import conf, layout, scripts
from labcore.errors import LabError
from labkit import check
from labkit.check import allocation, options
from labkit.check.given import differences, from_reference, require_sound
from labkit.check.job import Job, resolve
from labkit.check.record import record

from .test_record import LAUNCH, SOUND
from .test_record import TRAIN as TORCHRUN
from .test_script import MODEL, SHEBANG, TRAINER, home, job  # noqa: F401

A100 = ("#SBATCH --job-name=mixed\n#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n"
        "#SBATCH --gpus-per-node=a100:2\n")
HETJOB = "#SBATCH hetjob\n"
A10 = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=a10:2\n"
FIRST = "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
TRAIN = ("bash -c 'exec torchrun --node_rank $SLURM_PROCID --nproc_per_node $SLURM_GPUS_ON_NODE "
         f"\"$@\"' torchrun --nnodes 3 --master_addr $MASTER_ADDR --master_port 6000 {TRAINER} "
         f"{MODEL} --micro-batch-size 2 --device virtual\n")
SRUN = "srun --het-group=0,1 "
MIXED = SHEBANG + A100 + HETJOB + A10 + FIRST + SRUN + TRAIN


def test_a_step_spans_the_components_in_order(job):  # noqa: F811
    result = job(MIXED)
    assert (result.problems, result.nodes, result.world_size) == ((), 3, 6)
    assert [(one.nodes, one.gpus_per_node, one.gpu) for one in result.components] == [
        (1, 2, "a100"), (2, 2, "a10")]
    assert [node.component for node in result.run.placement] == [0, 1, 1]
    assert result.directives == result.components[0].directives and result.allocated_nodes == 3
    assert result.components[1].directives == {
        "job-name": "mixed", "nodes": "2", "ntasks-per-node": "1", "gpus-per-node": "a10:2"}


RIGHT = [
    MIXED.replace("0,1", "0-1"), MIXED.replace("0,1", "1,0"), MIXED.replace("0,1", "[0-1]"),
    MIXED.replace("hetjob", "hetjob  # then the A10"),
    MIXED.replace("$SLURM_PROCID", "$SLURM_NODEID"),  # counts the nodes of all components, too
    MIXED.replace("--nnodes 3", "--nnodes $((SLURM_JOB_NUM_NODES_HET_GROUP_0 + "
                  "SLURM_JOB_NUM_NODES_HET_GROUP_1))"),
    MIXED.replace(FIRST, FIRST.replace("$SLURM_JOB_NODELIST", "$SLURM_JOB_NODELIST_HET_GROUP_0")),
    SHEBANG + A100 + HETJOB + A10 + FIRST + f"srun {TRAIN.strip()} : {TRAIN}",
    SHEBANG + A100 + HETJOB + A10 + FIRST + "for group in 0 1; do srun --het-group=$group "
    + TRAIN.replace("$SLURM_PROCID", "$(($0 + SLURM_PROCID))").replace(
        "' torchrun", "' $group").strip() + " & done; wait\n"]


@pytest.mark.parametrize("text", RIGHT, ids=range(len(RIGHT)))
def test_however_a_right_script_is_written_it_is_right(job, text):  # noqa: F811
    result = job(text)
    assert (result.problems, result.nodes, result.world_size) == ((), 3, 6)
    assert [node.component for node in result.run.placement] == [0, 1, 1]


def test_nodes_of_components_may_have_different_numbers_of_gpus(job):  # noqa: F811
    result = job(MIXED.replace("a100:2", "a100:4"))
    assert (result.problems, result.world_size, result.run.size) == ((), 8, "1 x 4 + 2 x 2")


WRONG = [
    (MIXED.replace(HETJOB, "").replace(SRUN, "srun "), "but starts on 2 node(s)"),
    (MIXED.replace(SRUN, "srun "), "component 1 of the job has 2 node(s), and programs start on 0 "
     "of them. Without --het-group, srun uses component 0 only: start the ranks with srun "
     "--het-group=0,1"),
    (MIXED.replace(SRUN, "srun ").replace("--nnodes 3", "--nnodes 1"), "srun --het-group=0,1"),
    (MIXED.replace(SRUN, "srun --het-group=1 ").replace("--nnodes 3", "--nnodes 2"),
     "component 0 of the job has 1 node(s), and programs start on 0 of them"),
    (MIXED.replace("$SLURM_PROCID", "$SLURM_LOCALID"), "the nodes have --node_rank 0, 0, 0"),
    (MIXED.replace(FIRST, FIRST.replace("$SLURM_JOB_NODELIST", "$SLURM_JOB_NODELIST_HET_GROUP_1")),
     "the rendezvous address is slurmnode2, but rank 0 runs on slurmnode1"),
    (MIXED.replace("hetjob", "packjob"), "packjob is the deprecated name of #SBATCH hetjob"),
    (MIXED.replace("hetjob", "hetjob --nodes=2"), "Slurm does not read '--nodes=2'"),
    (MIXED.replace("a10:2", "a10:1").replace("$SLURM_GPUS_ON_NODE", "2"), "component 1 of the job: "
     "2 ranks per node run on GPUs (--device virtual), and the job requests 1 per node"),
    (MIXED.replace("#SBATCH --nodes=2", "#SBATCH --nodes=x"), "'x' is not a number of nodes")]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=range(len(WRONG)))
def test_what_would_fail_is_said(job, text, says):  # noqa: F811
    assert says in " / ".join(job(text).problems)


REFUSED = [
    ("--het-group=0,2", "--het-group=0,2: this job has 2 components (0-1), and 2 is none of them"),
    ("--het-group=x", "--het-group=x: it must be numbers of components, such as 0,1; nearest: 0-1"),
    ("--het-group=", "it must be numbers of components"),
    ("--het-group=[0", "it must be numbers of components"),
    ("--pack-group=0,1", "srun has no option --pack-group; did you mean --het-group?"),
    ("--het-group=0,1 -w slurmnode2", "--nodelist slurmnode2 is not a node of component 0 of this "
     "job; nearest: slurmnode1"),
    ("--het-group=0,1 -N2", "2 nodes requested, but only 1 allocated to component 0"),
    ("--het-group=0,1 -c2", "2 CPUs, and component 1 of the job has 1 there"),
    ("--het-group=0,1 --cpus-per-task=$SLURM_CPUS_PER_TASK", "is a variable empty or misspelled?")]


@pytest.mark.parametrize(("srun", "says"), REFUSED, ids=[srun for srun, _ in REFUSED])
def test_srun_refuses_what_the_job_does_not_have(job, srun, says):  # noqa: F811
    text = MIXED.replace(HETJOB, "#SBATCH --cpus-per-task=2\n" + HETJOB).replace(
        SRUN, f"srun {srun} ")
    with pytest.raises(check.Failed) as caught:
        job(text)
    assert says in str(caught.value)


def test_a_job_without_hetjob_has_one_component(job):  # noqa: F811
    for text in (MIXED.replace(HETJOB, ""), MIXED.replace("hetjob", "hetjobs")):
        with pytest.raises(check.Failed, match=r"this job has 1 component \(0\), and 1 is none of"):
            job(text)


def test_cpus_of_a_component_are_a_number(job):  # noqa: F811
    """SLURM_CPUS_PER_TASK is not set in the batch script of a heterogeneous job."""
    text = MIXED.replace("#SBATCH --nodes", "#SBATCH --cpus-per-task=2\n#SBATCH --nodes")
    (note,) = job(text).notes
    assert "Pass it on: srun --cpus-per-task=2, or `export SRUN_CPUS_PER_TASK=2`" in note
    assert job(text.replace(SRUN, SRUN + "--cpus-per-task=2 ")).notes == ()


SWAPPED = SHEBANG + A10 + HETJOB + A100 + FIRST + SRUN + TRAIN
REVERSED = MIXED.replace(FIRST, FIRST.replace("LIST ", "LIST_HET_GROUP_1 ")).replace(
    "$SLURM_PROCID", "$(((SLURM_PROCID + 2) % 3))")
COMPARED = [
    (MIXED, (), ""), (MIXED.replace("0,1", "0-1"), (), ""),
    (MIXED.replace("#SBATCH --gpus-per-node=a10:2", "#SBATCH --gres=gpu:A10:2"), (), ""),
    (SWAPPED, (), "component 0: #SBATCH asks for --nodes 2; the exercise uses 1\ncomponent 0: "
     "#SBATCH asks for --gpus-per-node a10; the exercise uses a100\ncomponent 1: #SBATCH asks for "
     "--nodes 1; the exercise uses 2\ncomponent 1: #SBATCH asks for --gpus-per-node a100; the "
     "exercise uses a10"),
    (REVERSED, (), "in the order of the node ranks, the nodes are of component 1 (2 ranks per "
     "node), then component 0 (2 ranks per node); the exercise's are of component 0 (2 ranks per "
     "node), then component 1 (2 ranks per node)"),
    (REVERSED, ("--nproc_per_node",), "the nodes are of component 1, then component 0; the"),
    (MIXED.replace("a10:2", "a10:4"), (), "component 1: #SBATCH asks for --gpus-per-node 4; the "
     "exercise uses 2\nin the order of the node ranks"),
    (MIXED.replace("a10:2", "a10:4"), ("--gpus-per-node", "--nproc_per_node"), ""),
    (MIXED.replace("=a10:2", "=2"), (), "component 1: #SBATCH asks for --gpus-per-node of no kind; "
     "the exercise uses a10"),
    (MIXED.replace("--nodes=2", "--nodes=3").replace("--nnodes 3", "--nnodes 4"), (),
     "component 1: #SBATCH asks for --nodes 3; the exercise uses 2\nnodes x ranks per node: 4 x 2; "
     "the exercise uses 3 x 2"),
    (MIXED.replace("--nodes=2", "--nodes=3").replace("--nnodes 3", "--nnodes 4"), ("--nodes",), ""),
    (MIXED.replace(HETJOB + A10, "").replace("--nodes=1", "--nodes=3").replace(SRUN, "srun "), (),
     "the job has 1 component(s); the exercise's has 2, which `#SBATCH hetjob` separates")]


@functools.cache
def reference() -> Job:
    """Return the exercise's job, which every comparison needs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mixed.sh"
        path.write_text(MIXED)
        return resolve(record(Path(folder), path.name))


@pytest.mark.parametrize(("text", "only", "says"), COMPARED, ids=range(len(COMPARED)))
def test_components_are_compared_with_the_exercises(job, text, only, says):  # noqa: F811
    kept = from_reference(reference(), only)
    require_sound(kept)
    student = job(text)
    assert student.problems == ()
    said = "\n".join(differences(student, kept, only))
    assert says in said and bool(says) == bool(said)


def test_a_job_of_one_component_has_nothing_new(job):  # noqa: F811
    """Notebooks contain what the check compares with."""
    one = job(MIXED.replace(HETJOB + A10, "").replace("--nodes=1", "--nodes=3").replace(
        SRUN, "srun "))
    kept = from_reference(one, ())
    assert (list(kept), list(kept["runs"][0])) == (
        ["nodes", "gpus_per_node", "runs"], ["nodes", "ranks_per_node", "trainer", "flags"])
    (said,) = differences(job(MIXED), kept, ())[:1]
    assert said == "the job has 2 components; the exercise's does not have `#SBATCH hetjob`"


@pytest.mark.parametrize("component", [{"nodes": "1"}, {"gpu": 1}, {"nods": 1}, 3])
def test_components_that_no_build_wrote_are_refused(component):
    with pytest.raises(ValueError, match="given= is not what `lab build` writes"):
        require_sound({"components": [component], "runs": [{"flags": ""}]})


def test_the_batch_script_sees_the_variables_of_slurm():
    """Variables as sbatch 22.05 sets them; those without a suffix are the first component's."""
    components, notes = allocation.directives(MIXED.replace(HETJOB, "#SBATCH -c 2\n" + HETJOB))
    env = allocation.environment(components, notes)
    assert notes == []
    assert env.items() >= {
        "SLURM_HET_SIZE": "2", "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "slurmnode1",
        "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NTASKS": "1",
        "SLURM_GPUS_ON_NODE": "2", "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_ID_HET_GROUP_0": "1", "SLURM_JOB_ID_HET_GROUP_1": "2",
        "SLURM_JOB_NAME_HET_GROUP_1": "mixed", "SLURM_JOB_NODELIST_HET_GROUP_0": "slurmnode1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "slurmnode[2-3]", "SLURM_NTASKS_HET_GROUP_1": "2",
        "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2", "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "1(x2)",
        "SLURM_TASKS_PER_NODE_HET_GROUP_0": "1", "SLURM_TASKS_PER_NODE_HET_GROUP_1": "1(x2)",
        "SLURM_CPUS_PER_TASK_HET_GROUP_0": "2", "SLURM_NTASKS_PER_NODE_HET_GROUP_1": "1",
        "SLURM_GPUS_PER_NODE_HET_GROUP_0": "a100:2"}.items()
    assert not {"SLURM_CPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE"} & set(env)


def test_tasks_see_the_variables_of_their_step(home):  # noqa: F811
    (home / "code" / "mine.sh").write_text(MIXED.partition("MASTER")[0] + SRUN + (
        "bash -c 'echo $SLURM_PROCID $SLURM_NODEID $SLURM_NTASKS $SLURM_NNODES "
        "$SLURM_JOB_NUM_NODES $SLURMD_NODENAME $SLURM_GPUS_ON_NODE $SLURM_CPUS_ON_NODE "
        "$(scontrol show hostnames | wc -l) $SLURM_JOB_ID'\n").replace("SRUN", "srun"))
    printed = record(home, "code/mine.sh")["output"]
    assert printed.splitlines() == ["0 0 3 3 3 slurmnode1 2 1 3 1", "1 1 3 3 3 slurmnode2 2 1 3 1",
                                    "2 2 3 3 3 slurmnode3 2 1 3 1"]


@pytest.mark.parametrize(("given", "kind"), [
    ({"gpus-per-node": "A100:2"}, "a100"), ({"gres": "gpu:a10:2"}, "a10"),
    ({"gpus-per-node": "2"}, ""), ({"gpus": "v100:4"}, "v100"), ({"gres": "gpu"}, ""),
    ({"gres": "gpu:2,license:a:1"}, ""),
    ({"gpus-per-node": "v100:1,a100:1"}, "v100,a100"), ({"gpus": ","}, ""), ({}, "")])
def test_the_kind_of_gpu_is_the_one_that_the_options_name(given, kind):
    assert options.gpu_kind(given) == kind


def test_slurm_has_at_most_128_components():
    components, notes = allocation.directives(SHEBANG + HETJOB * 200)
    assert len(components) == allocation.MOST_COMPONENTS
    assert notes == ["#SBATCH hetjob: 201 components, and Slurm accepts at most 128"]


MANY = [{"nodes": "1"}, {"nodes": "2"}]
FORGED = [
    {"components": {}}, {"components": []}, {"components": [{}] * 129}, {"components": [None]},
    {"components": [{"nodes": 2}]}, {"components": [{1: "2"}]}, {"components": ["nodes"]},
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode4"}]},
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode0"}]},
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode02"}]},
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode1" + "0" * 5000}]},
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode\u0661"}]},
    {"components": MANY, "launches": [LAUNCH, {**LAUNCH, "host": "slurmnode3"}]},  # the same task
    {"components": MANY, "launches": [{**LAUNCH, "host": "slurmnode2", "step": -1}]}]


@pytest.mark.parametrize("forged", FORGED, ids=range(len(FORGED)))
def test_a_forged_record_of_components_is_refused(forged):
    with pytest.raises(LabError, match="was not recorded properly"):
        resolve({**SOUND, **forged})


def test_a_forged_record_gains_nothing_over_the_directive_that_it_claims():
    """Its components are compared like those of a script, and its ranks stay on their nodes."""
    on = [{**TORCHRUN, "arguments": ["--nnodes", "3", "--node_rank", str(node), "--master_addr",
                                     "slurmnode1", *TORCHRUN["arguments"]],
           "task": node, "host": f"slurmnode{node + 1}"} for node in range(3)]
    honest = resolve({**SOUND, "components": MANY, "launches": on})
    kept = from_reference(honest, ())
    assert honest.problems == () and [one[0] for one in kept["runs"][0]["components"]] == [0, 1]
    for claimed in ([{"nodes": "3"}], [{"nodes": "2"}, {"nodes": "1"}],
                    [{"nodes": "1"}, {"nodes": "1"}, {"nodes": "1"}]):
        assert differences(resolve({**SOUND, "components": claimed, "launches": on}), kept, ())


def test_the_largest_record_of_components_is_read_at_once():
    most = [{"nodes": "999999k", "gpus-per-node": "1"}] * allocation.MOST_COMPONENTS
    steps = [{**TORCHRUN, "arguments": ["--nnodes", "100000", *TORCHRUN["arguments"]],
              "step": step, "background": True} for step in range(60)]
    begun = time.process_time()
    assert resolve({**SOUND, "components": most, "launches": steps}).problems
    assert time.process_time() - begun < 5


def test_the_script_of_lab_submit_has_no_problem(home):  # noqa: F811
    for cluster in (None, "a100:4x1,a10:2x2"):
        path = home / "code" / "gpt2_mixed.toml"
        if cluster:
            path.write_text(path.read_text().replace("a100:2x1,a10:2x1", cluster).replace(
                '"9-3"', '"6-6"').replace("batch-size = 8", "batch-size = 16"))
        (script,) = scripts.render(layout.lay_out(conf.read(path)))
        (home / script.path).write_text(script.text)
        result = check.script(str(script.path), given=None)
        assert (result.problems, result.notes) == ((), ())
        assert [one.gpu for one in result.components] == ["a100", "a10"]
        assert result.world_size == (8 if cluster else 4)

"""A script requests the GPUs that its ranks run on, and srun passes on the CPUs."""

import json

import pytest

from labkit import check
from labkit.check import allocation, options
from labkit.check.checks import Failed
from slurmbox import profile

from .test_script import FIRST, MODEL, SHEBANG, TRAINER, TWO_NODES, home, job  # noqa: F401

pytestmark = pytest.mark.slow

GPUS = "#SBATCH --gpus-per-node=2\n"
ONE = f"srun torchrun --nproc_per_node 2 {TRAINER} {MODEL} "
TWO = (FIRST + "srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_id 1 "
       f"--rdzv_endpoint $MASTER_ADDR:6000 {TRAINER} {MODEL} ")
VIRTUAL = "--device virtual:v100\n"
NONE = ("the job requests none, and a real cluster would allocate none. Request them with "
        "#SBATCH ")
ENOUGH = [
    (GPUS, ONE + VIRTUAL), ("#SBATCH --gres=gpu:v100:2\n", ONE + "--device virtual\n"),
    ("#SBATCH --gres=license:7,gpu:2\n", ONE + VIRTUAL), ("#SBATCH -G 2\n", ONE + VIRTUAL),
    ("#SBATCH --gpus-per-node=v100:1,a100:1\n", ONE + VIRTUAL),
    ("#SBATCH --ntasks-per-node=1 --gpus-per-task=2\n", ONE + VIRTUAL),
    ("#SBATCH --ntasks=2 --nodes=1 --gpus-per-task=1\n", ONE.replace("srun", "srun -n1") + VIRTUAL),
    (TWO_NODES + GPUS, TWO + VIRTUAL), (TWO_NODES + "#SBATCH --gpus=4\n", TWO + VIRTUAL),
    ("", ONE + "--device cpu\n"), ("", ONE + "\n")]
SHORT = [
    ("", ONE + VIRTUAL, f"run on GPUs (--device virtual:v100), but {NONE}--gpus-per-node=2"),
    ("", ONE + "--device cuda\n", NONE), ("", ONE + "--device=cuda\n", NONE),
    ("", f"export DEVICE_INSTEAD_OF_CPU=cuda\n{ONE}--device cpu\n", "DEVICE_INSTEAD_OF_CPU=cuda"),
    ("#SBATCH --gres=license:2\n", ONE + VIRTUAL, NONE),
    ("#SBATCH --gpus-per-node=0\n", ONE + VIRTUAL, NONE),
    ("#SBATCH --gpus-per-node=1\n", ONE + VIRTUAL, "2 ranks per node run on GPUs (--device "
     "virtual:v100), and the job requests 1 per node. Every rank needs its own: #SBATCH "
     "--gpus-per-node=2 (or --gres=gpu:2, --gpus, --gpus-per-task)"),
    ("#SBATCH --gres=gpu\n", ONE + VIRTUAL, "requests 1 per node"),
    (TWO_NODES + "#SBATCH --gpus-per-task=1\n", TWO + VIRTUAL, "requests 1 per node"),
    (TWO_NODES + "#SBATCH --gpus=3\n", TWO + VIRTUAL, "requests 1 per node")]


@pytest.mark.parametrize(("header", "body"), ENOUGH, ids=range(len(ENOUGH)))
def test_a_job_with_a_gpu_for_each_rank_has_no_problem(job, header, body):  # noqa: F811
    assert job(SHEBANG + header + body).problems == ()


@pytest.mark.parametrize(("header", "body", "says"), SHORT, ids=range(len(SHORT)))
def test_a_job_with_too_few_gpus_is_told_what_to_request(job, header, body, says):  # noqa: F811
    (problem,) = job(SHEBANG + header + body).problems
    assert says in problem


def test_nccl_without_a_device_only_prefers_gpus(job):  # noqa: F811
    result = job(f"{SHEBANG}{ONE} --distributed-backend nccl\n")
    assert result.problems == () and "(--distributed-backend nccl)" in result.notes[0]
    assert job(f"{SHEBANG}{GPUS}{ONE} --distributed-backend nccl\n").notes == ()


@pytest.mark.parametrize("flag", ["--device cuda", "--device=virtual", "--device virtual:h100"])
def test_it_holds_for_other_programs(home, flag):  # noqa: F811
    started = f"srun torchrun --nproc_per_node 2 code/mine.py --x {flag}\n"
    (home / "code" / "mine.sh").write_text(SHEBANG + started)
    with pytest.raises(Failed, match=r"This would go wrong.*Request them with #SBATCH --gpus-per"):
        check.program("code/mine.sh", "mine.py")
    (home / "code" / "mine.sh").write_text(SHEBANG + GPUS + started)
    assert check.program("code/mine.sh", "mine.py").gpus_per_node == 2


CPUS = "#SBATCH --cpus-per-task=4\n"
PASSED = [("srun --cpus-per-task=$SLURM_CPUS_PER_TASK", "4"), ("srun -c4", "4"),
          ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun", "4"), ("srun -l -c 2", "2")]


@pytest.mark.parametrize(("srun", "cpus"), PASSED, ids=range(len(PASSED)))
def test_srun_passes_the_cpus_on(job, srun, cpus):  # noqa: F811
    result = job(SHEBANG + CPUS + ONE.replace("srun", srun) + "\n")
    assert (result.notes, result.problems, result.run.cpus_per_task) == ((), (), cpus)
    assert result.run.by_srun and result.cpus_per_node == 4


@pytest.mark.parametrize(("header", "body", "noted"), [
    (CPUS, ONE, True), (CPUS, "srun -c4 true\n" + ONE, True), (TWO_NODES + CPUS, TWO, True),
    (TWO_NODES + CPUS, FIRST + "for n in 0 1; do srun -N1 -n1 -r$n " + TWO.partition("srun ")[2]
     + " & done; wait", True),
    (CPUS, "srun true\n" + ONE.replace("srun ", ""), False), ("", ONE, False),
    (CPUS.replace("4", "1"), ONE, False)], ids=range(7))
def test_cpus_that_srun_does_not_pass_on_are_a_note(job, capsys, header, body, noted):  # noqa: F811
    result = job(f"{SHEBANG}{header}{body}\n")
    assert result.problems == () and result.run.cpus_per_task == ""
    printed = capsys.readouterr().out
    assert len(result.notes) == noted and ("Note" in printed) == noted
    assert all("Pass it on: srun --cpus-per-task=" in note and note in printed
               for note in result.notes)


@pytest.mark.parametrize(("header", "srun", "says"), [
    (CPUS, "srun -c 64", "--cpus-per-task=64: 1 task(s) on a node need 64 CPUs, and the job has 4"),
    (CPUS, "srun -n2 -c 3", "2 task(s) on a node need 6 CPUs"),
    (CPUS, "srun -c abc", "--cpus-per-task=abc: it must be a number"),
    (CPUS, "srun --cpus-per-task=$CPUS", "is a variable empty or misspelled?"),
    (CPUS, "export SRUN_CPUS_PER_TASK=5; srun", "the job has 4"),
    (CPUS, "export SRUN_CPUS_PER_TASK=abc; srun", "--cpus-per-task=abc: it must be a number"),
    ("", "srun -c 2", "the job has 1 there")], ids=range(7))
def test_srun_refuses_cpus_that_the_job_does_not_have(job, header, srun, says):  # noqa: F811
    with pytest.raises(Failed) as caught:
        job(SHEBANG + header + ONE.replace("srun", srun) + "\n")
    assert says in str(caught.value)


def test_a_header_with_a_wrong_number_of_cpus_is_a_problem(job):  # noqa: F811
    result = job(f"{SHEBANG}{CPUS.replace('4', '4x')}{ONE}\n")
    assert "#SBATCH: --cpus-per-task=4x: it must be a number of at least 1" in result.problems
    assert result.cpus_per_node == 1


@pytest.mark.parametrize("header, srun", [
    (CPUS, "srun -O -c 5"), ("#SBATCH --exclusive\n", "srun -c 32"),
    ("#SBATCH --gpus-per-node=2 --cpus-per-gpu=3\n", "srun -c 6"),
    ("#SBATCH --mincpus=4\n", "srun -c 4"),
    ("#SBATCH --ntasks-per-node=2 -c2\n", "srun -n1 -c4")])
def test_srun_accepts_cpus_that_the_job_has(job, header, srun):  # noqa: F811
    assert allocation.CPUS == profile.CPUS
    assert job(SHEBANG + header + ONE.replace("srun", srun) + "\n").problems == ()


@pytest.mark.parametrize("cpus, most", [(8, 8), (64, 32)])
def test_exclusive_nodes_have_the_cluster_s_cpus_up_to_those_of_grading(job, home, cpus,  # noqa: F811
                                                                        most):
    (home / ".cluster").mkdir()
    (home / ".cluster" / "running.json").write_text(json.dumps(
        {"profile": profile.make(cpus=cpus).to_json()}))
    header = f"{SHEBANG}#SBATCH --exclusive\n"
    assert job(header + ONE.replace("srun", f"srun -c {most}") + "\n").cpus_per_node == most
    with pytest.raises(Failed, match=f"{most}"):
        job(header + ONE.replace("srun", f"srun -c {most + 1}") + "\n")
    assert job(header.replace("exclusive", "exclusive -c 12") + ONE + "\n").cpus_per_node == max(
        most, 12)


def test_the_step_with_the_fewest_cpus_counts(job):  # noqa: F811
    start = TWO.partition("srun ")[2]
    result = job(f"{SHEBANG}{TWO_NODES}{CPUS}{FIRST}"
                 f"srun -N1 -n1 -r0 -c4 {start} & srun -N1 -n1 -r1 -c1 {start} & wait\n")
    assert (result.run.nodes, result.run.cpus_per_task, result.problems) == (2, "1", ())
    result = job(f"{SHEBANG}{TWO_NODES}{CPUS}{FIRST}"
                 f"srun -N1 -n1 -r0 -c4 {start} & srun -N1 -n1 -r1 {start} & wait\n")
    assert result.run.cpus_per_task == "" and "Pass it on" in result.notes[0]


@pytest.mark.parametrize("directives, gpus", [
    ({"gpus-per-node": "2"}, "2"), ({"gpus-per-node": "v100:2"}, "2"),
    ({"gres": "gpu:v100:3"}, "3"), ({"gres": "gpu"}, "1"),
    ({"gpus": "3", "nodes": "2"}, "2"), ({"gres": "license:7"}, None), ({}, None)])
def test_a_script_is_told_the_gpus_that_it_requested(directives, gpus):
    assert allocation.environment([directives], []).get("SLURM_GPUS_ON_NODE") == gpus


@pytest.mark.parametrize("value", ["", "x", "9" * 5000, ",", "v100:", "-1", "\u00b2", "1k"])
def test_whatever_a_forged_record_requests_is_a_number(value):
    for option in ("gpus", "gres", "gpus-per-node", "gpus-per-task"):
        first, last = options.gpus_of_nodes({option: value, "ntasks": value}, 2)
        assert first >= last >= 0


def test_only_ascii_digits_are_numbers_and_no_number_is_endless():
    for text in ("\uff12", "\u00b2", "\u0662", "9" * 5000, "2\n"):
        with pytest.raises(options.BadOption, match="is not a number of nodes or tasks"):
            options.count(text, 1)
        assert options.gpus_of_nodes({"gpus-per-node": text}, 1) == (1, 1)
        assert options.expand(f"slurmnode[{text}]") == []
    assert options.expand("n[9-10,12]") == ["n9", "n10", "n12"]

"""Advice for jobs that are larger than the cluster."""

import shlex

import pytest

from lab import cli, larger
from slurmbox import control, profile

DEFAULT = profile.make()
MIXED = profile.make(4, "a100:4,a10:2")
CLUSTERS = [DEFAULT, MIXED, profile.make(gpus="none"), profile.make(3, "v100:2,a100:1,none"),
            profile.make(1, "h100:8", "25gbit", accounting=True, mode="loopback", cpus=64,
                         memory=48)]
# The numbers of nodes, GPUs, CPUs and GiB are each too large for some of these clusters.
REQUESTS = [
    "-N 5", "-N2-6", "--gres=gpu:8", "-G 20", "-G 6 -N 1", "--gpus-per-node=h100:8 -N 4", "-c 70",
    "-n 300", "-n 16 --ntasks-per-node=2", "--gpus-per-task=1 -n 40 -c 4", "--mem=300G", "--mem=0",
    "--mem-per-cpu=10G -c 32", "--mem-per-gpu=64000 --gpus-per-node=8", "-p a100 -N 3 -c 33",
    "-C a10 -N 4", "-N1 --gres=gpu:4 : -N 6 -c 80", "--exclusive -N 9", "--cpus-per-gpu=9 -G 64",
    "-N 8 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=12 --mem-per-cpu=8G"]


def advice(request, cluster=DEFAULT, **options):
    return larger.advice([*request.split(), "--wrap", "hostname"], cluster, **options)


def started_by(command):
    """The profile of the cluster that the advised command starts."""
    down, up = command.split("; ")
    assert down == "lab cluster down"
    given = cli.build_parser().parse_args(shlex.split(up)[1:])
    return control.UpOptions(given.nodes, given.gpus, given.link, given.accounting, given.mode,
                             given.cpus, given.memory).profile()


@pytest.mark.parametrize(("request_", "asks", "remedy"), [
    ("-N 3", "3 nodes (the cluster has 2)", "--nodes 3 --gpus v100:2"),
    ("--gres=gpu:4", "4 GPUs per node (the cluster has 2)", "--nodes 2 --gpus v100:4"),
    ("-c 33", "33 CPUs per node (the cluster has 32)", "--nodes 2 --gpus v100:2 --cpus 33"),
    ("-G 10", "5 nodes (the cluster has 2)", "--nodes 5 --gpus v100:2"),
    ("--mem=3T", "3072 GiB of memory per node (the cluster has ",
     "--nodes 2 --gpus v100:2 --memory 3072"),
    ("--gpus-per-node=h100:8", "1 node with 8 H100 GPUs (the cluster has none of this kind)",
     "--nodes 2 --gpus h100:8")])
def test_the_remedy_is_what_the_job_asks_for(request_, asks, remedy):
    problem, command = advice(request_)
    assert problem.startswith(f"the job asks for {asks}")
    assert command == f"for more: lab cluster down; lab cluster up {remedy}"


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("cluster", CLUSTERS, ids=lambda cluster: cluster.gpus)
def test_the_job_fits_the_cluster_that_is_advised(cluster, request_):
    first, *rest = advice(request_, cluster)
    if not rest:
        assert first == larger.size(cluster)
        return
    new = started_by(rest[0].removeprefix("for more: "))
    assert advice(request_, new) == [larger.size(new)]
    assert len(new.nodes) >= len(cluster.nodes) and new.cpus >= cluster.cpus
    assert (new.link, new.accounting, new.mode) == (cluster.link, cluster.accounting, cluster.mode)


def test_nodes_of_all_kinds_stay_unless_the_only_one_gives_way():
    assert advice("--gres=gpu:h100:8", MIXED)[1].endswith("up --gpus 2xa100:4,2xa10:2,1xh100:8")
    assert advice("-p a10 -N 3", MIXED)[1].endswith("up --gpus 2xa100:4,3xa10:2")


@pytest.mark.parametrize("request_", ["-N 65", "--gres=gpu:9", "-c 257", "--mem=5000G"])
@pytest.mark.parametrize("cluster", [DEFAULT, MIXED], ids=["default", "mixed"])
def test_a_job_larger_than_any_cluster_is_told_the_largest(cluster, request_):
    assert advice(request_, cluster)[1:] == [larger.LARGEST]


def test_an_unknown_gpu_is_named():
    assert advice("--gres=gpu:mi300:1")[1] == "there is no virtual GPU 'mi300': lab devices " \
        "lists them"


def test_options_of_the_script_count_and_sbatch_s_own_replace_them(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH -N 5 --gres=gpu:8\n#SBATCH hetjob\n"
                      "#SBATCH -N 2 -c 64\nhostname\n#SBATCH -N 60\n")
    lines = larger.advice([str(script), "-N", "9"], DEFAULT)
    assert "5 nodes" in lines[0]
    assert lines[1].endswith("up --nodes 7 --gpus v100:8 --cpus 64")
    assert larger.advice(["-N", "3", str(script)], DEFAULT)[1].endswith(
        "up --nodes 5 --gpus v100:8 --cpus 64")


def test_srun_and_salloc_have_programs_instead_of_scripts():
    assert larger.advice(["-N1", "python", "-N", "9"], DEFAULT, "srun") == [larger.size(DEFAULT)]
    assert larger.advice(["-N1", "a", "-N9", ":", "-N", "4", "b"], DEFAULT, "srun")[1].endswith(
        "up --nodes 5 --gpus v100:2")
    assert larger.advice(["--no-shell", "-N3"], DEFAULT, "salloc") == advice("-N 3")


def test_a_fixed_cluster_gets_no_command():
    assert advice("-N 3", fixed=True) == ["the job asks for 3 nodes (the cluster has 2)"]


def test_a_bad_option_is_left_to_slurm():
    assert advice("--nodes=many") == [larger.size(DEFAULT)]
    assert larger.advice([], DEFAULT) == [larger.size(DEFAULT)]  # a script on standard input

"""A job's view of its nodes' virtual GPUs and of the network between them."""

import argparse

import pytest

from slurmbox import cli, health
from tests.needs import because

pytestmark = pytest.mark.cluster

SHOW = "echo $SLURMD_NODENAME ${VIRTUAL_GPU-none} ${VIRTUAL_NETWORK-none} ${SLURM_GPUS_ON_NODE-0}"


@pytest.fixture(scope="module")
def mixed(make_cluster):
    return make_cluster(gpus="a100:2,a10:2,none", nodes=3)


def job(cluster, options):
    """The lines of SHOW in a batch script, then in a step on all its nodes; node by node."""
    (cluster.home / "show.sh").write_text(SHOW)
    assert cluster.batch(f"{options} -o shown.txt --wrap 'bash show.sh; srun bash show.sh'") == (
        "COMPLETED")
    batch, *steps = (cluster.home / "shown.txt").read_text().splitlines()
    return batch.split(), [line.split() for line in sorted(steps)]


def test_every_node_declares_its_own_card(mixed):
    batch, steps = job(mixed, "-N3 --ntasks-per-node=1")
    assert batch == ["slurmnode1", "a100-80gb", "none", "0"]
    # srun brings the batch script's environment along; what counts is the task's own node.
    assert steps == [["slurmnode1", "a100-80gb", "none", "0"], ["slurmnode2", "a10", "none", "0"],
                     ["slurmnode3", "none", "none", "0"]]


def test_another_node_s_card_never_comes_along(mixed):
    assert mixed.run("VIRTUAL_GPU=h200 srun -w slurmnode3 bash -c 'echo ${VIRTUAL_GPU-none}'"
                     ).stdout == "none\n"


@pytest.mark.parametrize(("options", "gpus"), [
    ("", "0"), ("--gres=gpu:1", "1"), ("--gres=gpu:2 --export=NONE", "2"),
    ("--gpus-per-node=2", "2"), ("--gpus=4", "2"), ("--gpus-per-task=1", "1")])
def test_a_job_that_asked_for_gpus_can_tell(mixed, options, gpus):
    batch, steps = job(mixed, f"-w slurmnode[1-2] -N2 --ntasks-per-node=1 {options}")
    assert [batch[-1], *(step[-1] for step in steps)] == [gpus] * 3


def test_a_step_of_srun_alone_can_tell(mixed):
    out = mixed.run(f"srun -w slurmnode2 --gres=gpu:2 bash -c '{SHOW}'").stdout
    assert out == "slurmnode2 a10 none 2\n"


def test_jobs_are_told_the_rate_of_the_links(mixed, monkeypatch, capsys):
    if health.read_record(mixed.layout)["place"]["mode"] != "namespaces":
        pytest.skip(because("namespaces"))
    monkeypatch.setenv("LAB_HOME", str(mixed.home))
    for rate, told in (("25gbit", "ethernet:25gbit"), ("unlimited", "none")):
        cli.run_link(argparse.Namespace(rate=rate))
        batch, steps = job(mixed, "-w slurmnode[1-2] -N2 --ntasks-per-node=1")
        assert {batch[2], *(step[2] for step in steps)} == {told}


def test_the_default_cluster_s_cards(cluster):
    out = cluster.run("srun -N2 bash -c 'echo $VIRTUAL_GPU'").stdout
    assert out == "v100-sxm2-16gb\n" * 2

"""The containers' cluster, as far as it can be seen without a container."""

import json
import os
import re
import socket
import subprocess
from dataclasses import asdict

import pytest

from job_monitor.nvidia_smi import cards
from lab import cli as program
from labcore.errors import LabError
from slurmbox import clients, config, containers, control, healing, health, profile, serve, status
from slurmbox.containers import NETWORK
from slurmbox.install import Slurm
from slurmbox.layout import Layout

SLURM = Slurm(("/usr/sbin", "/usr/bin"))


@pytest.fixture
def layout(tmp_path, monkeypatch):
    """The environment of one of the containers."""
    monkeypatch.setattr(containers, "RUN", tmp_path / "run")
    monkeypatch.setattr(containers, "KEY", tmp_path / "key" / "munge.key")
    monkeypatch.setenv("LAB_HOME", str(tmp_path / "work"))
    made = Layout(tmp_path / "work")
    made.prepare()
    made.adopt_run(tmp_path / "run")
    return made


def record(layout, **options):
    made = profile.make(**options)
    health.write_record(layout, {"profile": made.to_json(), "place": asdict(NETWORK)})
    return made


def lab(*words):
    arguments = program.build_parser().parse_args(["cluster", *words])
    return arguments.run(arguments)


def test_slurm_conf_names_containers(layout):
    text = config.slurm_conf(layout, profile.make(), NETWORK, SLURM)
    assert "SlurmctldHost=controller\n" in text
    assert "NodeName=slurmnode2 NodeAddr=slurmnode2 Port=6818 CPUs=32" in text
    assert "Gres=gpu:v100:2 Feature=v100" in text
    assert f"AuthInfo=socket={containers.RUN}/munge\n" in text


def test_jobs_use_the_containers_interface(layout):
    text = config.task_prolog(layout, profile.make(), NETWORK, SLURM, [])
    assert "export GLOO_SOCKET_IFNAME=eth0" in text and "LD_PRELOAD" not in text


def test_real_gpus_are_on_a_node_and_in_a_partition_of_their_own(layout):
    made = profile.make(cuda=2)
    text = config.slurm_conf(layout, made, NETWORK, SLURM)
    assert "NodeName=slurmgpu1 NodeAddr=slurmgpu1" in text and "Gres=gpu:cuda:2" in text
    assert "PartitionName=slurmpar Nodes=slurmnode1,slurmnode2 Default=YES" in text
    assert "PartitionName=cuda Nodes=slurmgpu1 MaxTime" in text
    prolog = config.task_prolog(layout, made, NETWORK, SLURM, [])
    assert "slurmgpu1) echo unset VIRTUAL_GPU; echo export DEVICE_INSTEAD_OF_CPU=cuda" in prolog
    assert profile.from_json(made.to_json()) == made
    assert cards.declared_gpus({"profile": made.to_json()})["slurmgpu1"] == []


def test_the_key_is_not_in_the_workspace(layout, monkeypatch):
    monkeypatch.setattr(config.Slurm, "program", lambda self, name: f"/usr/sbin/{name}")
    monkeypatch.setattr(config.Slurm, "version", lambda self: (22, 5))
    containers.KEY.parent.mkdir()
    config.write(layout, profile.make(), NETWORK, SLURM, [], containers.KEY)
    first = containers.KEY.read_text()
    config.write(layout, profile.make(), NETWORK, SLURM, [], containers.KEY)
    assert containers.KEY.read_text() == first and len(first) == 128
    assert containers.KEY.stat().st_mode & 0o777 == 0o600
    assert not list(layout.home.rglob("*.key"))


def test_another_machine_with_the_same_workspace_is_no_container(layout, monkeypatch):
    assert containers.in_container(layout)
    (containers.RUN / "cluster").unlink()
    assert not containers.in_container(layout)


@pytest.mark.parametrize(("words", "command"), [
    ("up", "compose.yml up -d"), ("down", "compose.yml down"),
    ("link 1gbit", "LINK=1gbit docker compose -f docker/compose.yml up -d"),
    ("node slurmnode2 kill", "compose.yml kill slurmnode2"),
    ("node slurmnode2 start", "compose.yml up -d slurmnode2"),
    ("node slurmnode1 cut", "compose.yml pause slurmnode1"),
    ("node slurmnode1 heal", "compose.yml unpause slurmnode1"),
    ("use local", "compose.yml down")])
def test_what_only_the_machine_outside_can_do_is_named(layout, monkeypatch, words, command):
    record(layout)
    monkeypatch.setattr("slurmbox.health.supervisor", lambda layout: (1, 1))
    with pytest.raises(LabError, match=f"{words}: .*containers.*{command}$"):
        lab(*words.split())


@pytest.mark.parametrize(("words", "said"), [
    ("controller --link 1gb", "link rate '1gb': not a number and a unit"),
    ("node --link 900gbit", "nearest: 400gbit"),
    ("controller --gpus v100:9", "nearest: v100:8"),
    ("node --cuda 9", "--cuda 9: not between 0 and 8 GPUs; nearest: 8"),
    ("controller --nodes 0", "--nodes 0: not between 1 and 64"),
    ("login", r"serve login \(nothing\): .* nearest: serve login lab start"),
    ("login nosuch --port 1", "serve login nosuch --port 1: no such command")])
def test_a_bad_option_is_refused_before_anything_is_done(layout, words, said):
    with pytest.raises(LabError, match=said):
        lab("serve", *words.split())
    assert not layout.record.exists()


@pytest.mark.parametrize("words", ["serve", "serve contoller", "serve node --nodes two"])
def test_an_unknown_role_or_number_is_refused(layout, words, capsys):
    with pytest.raises(SystemExit):
        lab(*words.split())
    assert "lab cluster serve" in capsys.readouterr().err


def test_a_container_of_another_name_is_refused(layout, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "slurmnode3")
    with pytest.raises(LabError, match="'slurmnode3': no node has this name; nearest: slurmnode2"):
        serve.node_name(profile.make())


def test_an_unset_variable_is_the_default(layout):
    arguments = program.build_parser().parse_args(
        ["cluster", "serve", "node", "--gpus=", "--link="])
    assert serve.requested_profile(arguments) == profile.make()


def test_a_node_waits_for_the_controller_of_its_own_shape(layout, monkeypatch):
    def waits(wanted):
        return containers.wait_for_controller(layout, said.append, wanted, timeout=0)

    said = []
    monkeypatch.setattr(containers, "controller_problem", lambda: "Connection refused")
    record(layout)
    with pytest.raises(LabError, match=r"controller:6817 does not respond: Connection refused; see "
                                       r"docker compose .* logs controller"):
        waits(None)
    monkeypatch.setattr(containers, "controller_problem", lambda: None)
    assert waits(profile.make())["place"]["mode"] == "containers"
    with pytest.raises(LabError, match="with other options"):
        waits(profile.make(gpus="a100:4"))
    layout.record.unlink()
    with pytest.raises(LabError, match="it is starting"):
        waits(None)


# A command of Slurm's that notes what it was asked, and answers from the third time on.
BUSY = """\
#!/bin/sh
echo "$(basename $0) $*" >> {asked}
[ $(grep -c "^$(basename $0) " {asked}) -ge 3 ] || {{ echo "no controller" >&2; exit 1; }}
[ "$(basename $0)" = squeue ] && echo 7 && echo 9
exit 0
"""


@pytest.fixture
def asked(layout):
    """The file in which a busy Slurm notes what it was asked."""
    asked = layout.home / "asked"
    for name in ("squeue", "scontrol"):
        program = layout.bin / name
        program.write_text(BUSY.format(asked=asked))
        program.chmod(0o755)
    return asked


def test_a_node_that_comes_back_fails_its_jobs_even_if_slurm_does_not_answer_at_once(layout, asked):
    assert healing.fail_node(layout, "slurmnode2", timeout=60) == ["7", "9"]
    squeue, scontrol = "squeue -h -t R,S -o %A -w slurmnode2", (
        "scontrol update nodename=slurmnode2 state=down reason=its container was restarted")
    assert asked.read_text().splitlines() == [squeue] * 3 + [scontrol] * 3


def test_slurm_without_an_answer_is_an_error_and_not_an_empty_queue(layout, asked):
    with pytest.raises(LabError, match=r"squeue -h .* -w slurmnode2: no controller"):
        healing.fail_node(layout, "slurmnode2", timeout=0)


def test_without_nodes_the_lab_goes_on_and_says_so(layout, monkeypatch):
    said = []
    monkeypatch.setattr(containers, "wait_for_controller",
                        lambda *_, **__: {"profile": record(layout).to_json()})
    monkeypatch.setattr(containers, "wait_for_nodes", lambda *_: (_ for _ in ()).throw(
        LabError("the cluster is damaged: slurmnode2 is down*")))
    assert control.ensure_up(layout.home, notify=said.append) is False
    assert said == ["the cluster is damaged: slurmnode2 is down*; on the host: docker "
                    "compose -f docker/compose.yml up -d"]


def test_a_link_that_is_not_shaped_is_no_other_for_the_jobs(layout):
    made = record(layout, link="1gbit")
    config.write_virtual_network(layout, "1gbit")
    network = layout.state / "etc" / "virtual-network"
    containers.record_link(layout, "slurmnode1", "1gbit", None)
    assert network.read_text() == "ethernet:1gbit\n"
    containers.record_link(layout, "slurmnode2", "1gbit", "tc: Operation not permitted")
    assert network.read_text() == "\n"
    assert containers.links(layout, made) == (
        "1gbit, unlimited (1gbit is not possible: tc: Operation not permitted)")


def test_status_names_the_way_to_mend(layout, capsys, monkeypatch):
    record(layout, cpus=48, memory=90)
    result = status.health.Health(alive=True, states={"slurmnode1": "idle", "slurmnode2": "down*"},
                                  problems=["slurmnode2 is down*"])
    monkeypatch.setattr(status.health, "examine", lambda layout: result)
    monkeypatch.setattr(status.health, "run_client",
                        lambda *_: subprocess.CompletedProcess([], 0, ""))
    assert status.show(layout.home) == status.DAMAGED
    printed = capsys.readouterr().out
    assert re.search(r"^slurmnode1 +idle +\S+ +48 +90 GiB +2 x v100 .virtual.$", printed, re.M)
    assert "mode containers" in printed and "slurmnode1 has not reported" in printed
    assert printed.endswith("to fix it: docker compose -f docker/compose.yml up -d\n")


def test_commands_say_that_the_controller_is_gone(layout, monkeypatch):
    monkeypatch.setattr(Slurm, "find", lambda self, name: f"/bin/echo_{name}")
    clients.write_wrappers(layout, SLURM, profile.make(), NETWORK)
    done = subprocess.run([layout.bin / "sinfo"], capture_output=True, text=True)
    assert done.returncode == 1 and "controller's container is not running" in done.stderr


def test_a_record_of_containers_that_are_gone_is_no_cluster_here(tmp_path):
    made = Layout(tmp_path)
    made.prepare()
    record(made, gpus="a100:4")
    assert not containers.in_container(made) and control.from_containers(json.loads(
        made.record.read_text()))


def test_as_an_ordinary_user_nothing_is_given_away(layout, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "setresuid", lambda *_: pytest.fail("no right to"))
    containers.drop_root(1000, 100, (layout.home,))

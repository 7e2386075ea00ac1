"""Checks of docker/compose.yml that start nothing."""

import re

import pytest
import yaml

import image as images
from lab import cli as program
from labcore.workspace import CHECKOUT
from slurmbox.addresses import CONTROLLER
from slurmbox.containers import COMPOSE, KEY
from slurmbox.profile import make

FILE = images.DOCKERFILE.with_name("compose.yml")
TEXT = FILE.read_text()
SERVICES = yaml.safe_load(TEXT)["services"]


def words(service):
    """Return the words of a service's command, as without any variable set."""
    command = SERVICES[service].get("command", "")
    return re.sub(r"\$\{\w+:-(\w*)\}", r"\1", command).split()


def test_it_is_where_the_messages_say():
    assert COMPOSE.split()[-1] == str(FILE.relative_to(CHECKOUT))


def test_every_node_of_the_cluster_is_a_service():
    assert {CONTROLLER, "lab", *make(cuda=1).node_names} <= set(SERVICES)
    for name in (CONTROLLER, "lab", *make(cuda=1).node_names):
        assert SERVICES[name]["hostname"] == name


def test_only_targets_that_there_are():
    there = set(re.findall(r"^FROM \S+ AS (\w+)$", images.DOCKERFILE.read_text(), re.M))
    wanted = {service["build"]["target"] for service in SERVICES.values()}
    assert wanted <= there


def test_only_networks_and_volumes_that_there_are():
    file = yaml.safe_load(TEXT)
    for service in SERVICES.values():
        assert set(service["networks"]) <= set(file["networks"])
        mounts = {volume.partition(":")[0] for volume in service["volumes"]}
        assert mounts <= set(file["volumes"])
    assert file["networks"]["cluster"]["internal"] is True


def test_every_address_stands_in_everybodys_hosts():
    names = {CONTROLLER, "lab", *make(cuda=1).node_names}
    for name in names:
        service = SERVICES[name]
        hosts = dict(line.split(":", 1) for line in service["extra_hosts"])
        assert set(hosts) == names
        assert service["networks"]["cluster"]["ipv4_address"] == hosts[name]


def test_the_nodes_have_no_way_out_and_only_this_machine_reaches_the_lab():
    for name in (CONTROLLER, *make().node_names):
        assert SERVICES[name]["networks"].keys() == {"cluster"} and "ports" not in SERVICES[name]
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("service", [CONTROLLER, *make(cuda=1).node_names, "lab"])
def test_the_commands_are_ones_that_lab_knows(service):
    arguments = program.build_parser().parse_args(words(service)[1:])
    assert callable(arguments.run)
    if rest := getattr(arguments, "command", None):
        assert program.build_parser().parse_args(rest[1:]).ip == "0.0.0.0"


def test_no_privilege_but_the_named_ones_and_no_secret():
    assert "privileged" not in TEXT and "unconfined" not in TEXT
    assert not re.search(r"(token|password|secret|key)\s*[:=]", TEXT, re.I)
    for name, service in SERVICES.items():
        more = set(service.get("cap_add", []))
        assert service["cap_drop"] == ["ALL"] and more <= {"CHOWN", "KILL", "NET_ADMIN", "SETGID",
                                                           "SETUID"}
        assert "no-new-privileges:true" in service["security_opt"] or name == "instructor"
        assert ("NET_ADMIN" in more) == name.startswith("slurm")


def test_work_and_key_are_shared_by_all():
    for name in (CONTROLLER, "lab", *make(cuda=1).node_names):
        assert SERVICES[name]["volumes"] == ["work:/home/jovyan/work", f"munge:{KEY.parent}"]

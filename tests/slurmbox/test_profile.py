import pytest

from labcore.errors import LabError
from slurmbox import profile
from virtualgpu.net import network


def test_the_default_is_two_nodes_with_two_v100_each():
    wanted = profile.make()
    assert wanted.node_names == ("slurmnode1", "slurmnode2")
    assert [node.gres for node in wanted.nodes] == ["gpu:v100:2"] * 2
    assert list(wanted.partitions()) == ["slurmpar"]


def test_kinds_of_gpu_share_the_nodes_in_order():
    wanted = profile.make(nodes=4, gpus="a100:4,a10:2")
    assert [node.gres for node in wanted.nodes] == ["gpu:a100:4"] * 2 + ["gpu:a10:2"] * 2
    members = {name: [node.name for node in nodes] for name, nodes in wanted.partitions().items()}
    assert members["a100"] == ["slurmnode1", "slurmnode2"]
    assert members["a10"] == ["slurmnode3", "slurmnode4"]
    assert len(members["slurmpar"]) == 4


def test_numbers_of_nodes_may_be_given_per_kind():
    wanted = profile.make(gpus="3xa100:4,1xA10:4")
    assert [node.gpu_type for node in wanted.nodes] == ["a100"] * 3 + ["a10"]


def test_a_type_is_a_card_or_an_alias_of_one():
    wanted = profile.make(nodes=3, gpus="v100:2,a100-40gb:1,none")
    assert [node.card for node in wanted.nodes] == ["v100-sxm2-16gb", "a100-40gb", None]
    assert [node.gres for node in wanted.nodes] == ["gpu:v100:2", "gpu:a100-40gb:1", ""]


@pytest.mark.parametrize(("rate", "told"), [
    ("25gbit", "ethernet:25gbit"), ("100mbit", "ethernet:100mbit"),
    ("1500kbit", "ethernet:1.5mbit"), ("unlimited", "")])
def test_virtual_gpus_are_told_of_the_links(rate, told):
    assert profile.virtual_network(profile.parse_link(rate)) == told
    if told:
        assert network.parse(told).bandwidth == profile.bits_per_second(rate) / 8


def test_without_gpus():
    assert [node.gres for node in profile.make(nodes=1, gpus="none").nodes] == [""]


def test_a_profile_survives_its_record():
    wanted = profile.make(4, "a100:4,a10:4", "25gbit", True, "loopback", cpus=8, memory=16)
    assert profile.from_json(wanted.to_json()) == wanted


@pytest.mark.parametrize(("options", "says"), [
    ({"nodes": 0}, "--nodes 0: not between 1 and 64"),
    ({"nodes": 500}, "--nodes 500: not between 1 and 64"),
    ({"cpus": 0}, "--cpus 0: not between 1 and 256; nearest: 1"),
    ({"memory": 5000}, "--memory 5000: not between 1 and 4096; nearest: 4096"),
    ({"gpus": "v10:2"}, "no virtual GPU model is called 'v10'; nearest: v100"),
    ({"gpus": "gh200:2"}, "no virtual GPU model is called 'gh200'; nearest: h200"),
    ({"gpus": "a100:2,a100-60gb:2"}, "nearest: a100-80gb or a100-40gb"),
    ({"gpus": "v100"}, "not TYPE:NUMBER, for example v100:2"),
    ({"gpus": "2:v100"}, "not TYPE:NUMBER"),
    ({"gpus": "v100:9"}, "nearest: v100:8"),
    ({"gpus": "v100:0"}, "nearest: v100:1"),
    ({"gpus": "0xv100:2,2xa10:1"}, "no node has these"),
    ({"gpus": "2xa100:4,a10:4"}, "for each type or for none"),
    ({"nodes": 3, "gpus": "2xa100:4,2xa10:4"}, "describes 4 nodes"),
    ({"nodes": 3, "gpus": "a100:4,a10:4"},
     "--nodes 4, or give the number of each: 2xa100:4,1xa10:4"),
    ({"nodes": 1, "gpus": "a100:4,a10:4"}, "--nodes 2"),
    ({"link": "fast"}, "such as 25gbit"),
    ({"link": "1Gb/s"}, "such as 25gbit"),
    ({"link": "10kbit"}, "nearest: 1mbit"),
    ({"link": "9999gbit"}, "nearest: 400gbit"),
    ({"mode": "magic"}, "one of auto, namespaces, loopback"),
])
def test_bad_input_is_named_with_the_nearest_right_value(options, says):
    with pytest.raises(LabError) as error:
        profile.make(**options)
    assert says in str(error.value)


def test_bits_per_second():
    assert profile.bits_per_second(profile.parse_link("2.5GBIT")) == 2_500_000_000

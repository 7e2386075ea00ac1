"""One line of text describes a cluster of several kinds of nodes."""

import pytest

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net.cluster_spec import parse_cluster, parse_nodes


def test_every_group_has_its_gpu_model_gpus_per_node_and_nodes():
    groups = parse_cluster("a100:4x2, A10:4x4,v100:8")
    assert [(group.card.name, group.per_node, group.nodes, group.gpus) for group in groups] == [
        ("a100-80gb", 4, 2, 8), ("a10", 4, 4, 16), ("v100-sxm2-16gb", 8, 1, 8)]
    assert parse_cluster(",".join(map(str, groups))) == groups
    assert len(parse_cluster("a100:4x2,a100:8x1")) == 2  # other nodes of the same GPUs


def test_nodes_keep_their_order_and_equal_neighbors_form_one_group():
    nodes = parse_nodes("a100:4x1,a10:4x3,a10:4,a100:4x1")
    assert ",".join(map(str, nodes)) == "a100-80gb:4x1,a10:4x4,a100-80gb:4x1"
    assert parse_nodes("a100:4,a100:8") == parse_cluster("a100:4,a100:8")


@pytest.mark.parametrize("text, why", [
    ("", "cluster '': expected KIND:GPUSxNODES.*nearest: a100:4x2,a10:4x4"),
    ("a100", "cluster 'a100': expected KIND:GPUSxNODES"),
    ("a100:4x2,", "cluster '': expected KIND:GPUSxNODES"),
    ("a100:-4x2", "cluster 'a100:-4x2': expected KIND:GPUSxNODES"),
    ("a100:4x2.5", "cluster 'a100:4x2.5': expected KIND"),
    ("a1000:4x2", "cluster 'a1000:4x2': no virtual GPU model is called 'a1000'; nearest: a100"),
    ("a100:0x2", "a100-80gb GPUs .* has 8; nearest: a100:1x2"),
    ("a100:16x2", "nearest: a100:8x2"),
    ("a10:4x0", "expected 1 to 4096 nodes; nearest: a10:4x1"),
    ("a10:4x9999", "nearest: a10:4x4096"),
    ("a100:4x2,a100-80gb:4x1", "nodes of 4 a100-80gb twice; nearest: a100-80gb:4x3"),
])
def test_text_that_describes_no_cluster_names_the_nearest(text, why):
    with pytest.raises(VirtualGpuError, match=why):
        parse_cluster(text)

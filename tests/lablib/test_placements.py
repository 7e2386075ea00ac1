"""Where the parts of a model are, and what then crosses the network."""

import pytest

from lablib.placements import busiest_node, problem

# Two nodes of two GPUs; replica, stage, and shard of each rank.
STAGE_PER_NODE = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
REPLICA_PER_NODE = [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]


def test_stages_on_two_nodes_send_activations_and_their_gradients():
    assert busiest_node(STAGE_PER_NODE, 2, activation=10, gradient=1000) == 2 * 10


def test_replicas_on_two_nodes_send_gradients():
    assert busiest_node(REPLICA_PER_NODE, 2, activation=10, gradient=1000) == 2 * 2 / 2 * 1000


def test_a_stage_between_two_others_sends_in_both_directions():
    assert busiest_node([(0, stage, 0) for stage in range(3)], 1, 10, 1000) == 2 * 10


def test_a_ring_crosses_the_network_once_per_node():
    assert busiest_node([(replica, 0, 0) for replica in range(4)], 2, 10, 1000) == 1500


def test_one_node_sends_nothing():
    assert busiest_node(STAGE_PER_NODE, 4, 10, 1000) == 0


@pytest.mark.parametrize(("placement", "message"), [
    (None, "None is not a list with a replica, stage, and shard for each of 4 ranks"),
    ([(0, 0)] * 4, "is not a list"), ([(0, 0, 0)] * 3, "is not a list"),
    ([(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 1)], "several ranks hold replica 0, stage 0"),
    ([(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 1, 1)], "there are 1 replicas, 2 stages, and 2 shards"),
    ([(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)], "of replica 0, stage 0 spans nodes 0, 1")])
def test_a_placement_that_cannot_be_is_refused(placement, message):
    assert message in problem(placement, 2, (1, 2, 2))


def test_right_placements_have_no_problem():
    assert problem(STAGE_PER_NODE, 2, (2, 2, 1)) is problem(REPLICA_PER_NODE, 2, (2, 2, 1)) is None

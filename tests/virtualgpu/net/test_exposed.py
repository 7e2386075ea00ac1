"""Exposed communication, on cases that can be computed by hand."""

import pytest

from virtualgpu.core.clock import COMPUTE, Clock

NCCL, SIDE = "nccl", "side"


@pytest.fixture
def clock():
    return Clock()


def test_compute_hides_what_it_overlaps(clock):
    """A collective of 3 s beside a kernel of 1 s: 2 s are exposed."""
    clock.communicate("all_reduce", NCCL, 0.0, 3.0)
    clock.run("kernel", 1.0)
    clock.wait_for_communication(3.0)
    assert clock.exposed == {COMPUTE: 2.0}
    clock.wait_for_communication(3.0)  # a second time: nothing is waited for
    assert clock.exposed == {COMPUTE: 2.0}
    clock.run("kernel", 1.0)
    clock.wait_for_communication(3.5)  # over long ago
    assert clock.exposed == {COMPUTE: 2.0} and clock.ready() == 4.0


def test_a_wait_through_another_stream_counts_without_what_that_stream_computes(clock):
    """FSDP: the side stream waits for an all-gather of 3 s and copies for 0.5 s; compute has a
    kernel of 1 s and waits for the copy: 2.5 s idle, of which 2 s are communication."""
    clock.communicate("all_gather", NCCL, 0.0, 3.0)
    clock.wait_for_communication(3.0, SIDE)
    clock.run("copy", 0.5, SIDE)
    event = clock.ready(SIDE)
    clock.run("kernel", 1.0)
    clock.wait(event, COMPUTE, SIDE)
    assert clock.ready() == 3.5
    assert clock.exposed == {SIDE: 3.0, COMPUTE: 2.0}


def test_a_prefetched_gather_is_hidden(clock):
    clock.communicate("all_gather", NCCL, 0.0, 3.0)
    clock.wait_for_communication(3.0, SIDE)
    clock.run("copy", 0.5, SIDE)
    clock.run("kernel", 5.0)
    clock.wait(clock.ready(SIDE), COMPUTE, SIDE)
    assert clock.exposed[COMPUTE] == 0.0 and clock.ready() == 5.0


def test_waiting_for_another_stream_s_kernels_is_no_communication(clock):
    clock.run("copy", 2.0, SIDE)
    clock.wait(clock.ready(SIDE), COMPUTE, SIDE)
    assert clock.ready() == 2.0 and clock.exposed[COMPUTE] == 0.0


def test_an_event_before_the_communication_exposes_nothing(clock):
    clock.run("copy", 1.0, SIDE)
    event = clock.ready(SIDE)
    clock.communicate("all_gather", NCCL, 1.0, 4.0)
    clock.wait_for_communication(4.0, SIDE)
    clock.wait(event, COMPUTE, SIDE)
    assert clock.ready() == 1.0 and clock.exposed[COMPUTE] == 0.0


def test_three_streams_in_a_row(clock):
    """The time of a collective counts once in a chain of waits."""
    clock.communicate("reduce_scatter", NCCL, 1.0, 4.0)
    clock.wait_for_communication(4.0, "first")
    clock.run("copy", 1.0, "first")
    clock.wait(clock.ready("first"), "second", "first")
    clock.run("copy", 1.0, "second")
    clock.run("kernel", 2.0)
    clock.wait(clock.ready("second"), COMPUTE, "second")
    assert clock.ready() == 6.0
    assert clock.exposed == {"first": 4.0, "second": 4.0, COMPUTE: 2.0}


def test_the_host_that_waits_leaves_the_gpu_without_work(clock):
    """torch.cuda.synchronize() while a collective of 3 s runs beside a kernel of 1 s."""
    clock.communicate("all_reduce", NCCL, 0.0, 3.0)
    clock.run("kernel", 1.0)
    assert clock.synchronize() == 3.0
    assert clock.exposed == {COMPUTE: 2.0}
    assert clock.synchronize() == 3.0
    assert clock.exposed == {COMPUTE: 2.0}


def test_a_late_host_exposes_nothing(clock):
    """If the host waits only after the collective has ended, no communication is exposed."""
    clock.communicate("all_reduce", NCCL, 0.0, 3.0)
    clock.work(5.0)
    clock.wait_for_communication(3.0)
    assert clock.exposed[COMPUTE] == 0.0

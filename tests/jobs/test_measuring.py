"""The programs that measure: links between ranks, and what the CPU reaches."""

import pytest

from lablib import links, roofline

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture
def measured(course, warm, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(course.home))

    def run(command):
        done = course.run(f"{command} > megatron/logs/measured.txt", timeout=100)
        assert done.returncode == 0, done.stderr
        return "megatron/logs/measured.txt"

    return run


@pytest.mark.parametrize("nodes", [1, 2])
def test_messages_take_longer_the_larger_they_are(measured, nodes):
    path = measured(f"srun --nodes={nodes} --ntasks=2 python code/messages.py")
    curve = links.read("measured", path)
    assert curve.sizes == tuple(4**n for n in range(1, 13))
    assert 0 < min(curve.seconds) < curve.seconds[-1] / 4
    assert 0 < curve.fit.latency < 0.1 and curve.fit.bandwidth > 1e6


def test_products_are_measured_with_the_threads_that_were_asked_for(measured, course):
    path = measured("srun --cpus-per-task=2 python code/matmul.py 256")
    cpu = roofline.read(path)
    assert (course.home / path).read_text().startswith("2 threads\n")
    assert [one.k for one in cpu.gemms] == [2**power for power in range(2, 10)]
    assert all(one.m == one.n == 256 for one in cpu.gemms)
    assert cpu.bandwidth > 1e7 and cpu.peak > 1e7

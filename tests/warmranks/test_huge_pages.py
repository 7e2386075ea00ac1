"""A fork server that forks often moves its memory into huge pages."""

from __future__ import annotations

from tests.needs import needs
from warmranks import ForkServer
from warmranks.forking import RUNS_BEFORE_COLLAPSE

from .allocated import huge_memory


@needs("huge pages")
def test_a_server_that_forks_often_uses_huge_pages_and_keeps_its_data():
    seen: list[tuple[int, bool]] = []
    with ForkServer(["tests.warmranks.allocated"]) as server:
        while len(seen) < RUNS_BEFORE_COLLAPSE or (
                seen[-1][0] < 4096 and len(seen) < 3 * RUNS_BEFORE_COLLAPSE):
            seen += server.run_ranks(huge_memory, 1, backend=None)
    assert seen[-1][0] >= 4096
    assert all(correct for _, correct in seen)

"""Warm starts for the jobs of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import RunningCluster
from tests.labs.warm.launch import Warm, servers


@pytest.fixture(scope="package")
def warm(course: RunningCluster) -> Iterator[Warm]:
    """Fork the ranks of jobs from servers that have imported torch. The first node of the first
    job starts cold."""
    with servers(course) as started:
        yield started

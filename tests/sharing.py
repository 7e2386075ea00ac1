"""How `make test` shares the tests out among its workers (pytest -n).

The tests of a file stay on one worker, since they use what its fixtures made. So do files with a
costly fixture in common. All that use the common Slurm cluster: it is made once, their jobs are
not held up by each other's, and while they wait for Slurm the cores are the other worker's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

CLUSTER = ("tests/cluster/", "tests/jobs/", "tests/examples/test_jobs.py", "tests/lab/test_jobs.py",
           "tests/browser/test_every_lab.py", "tests/browser/test_lab.py",
           "tests/docs/test_commands.py", "tests/labs/test_run.py")
TRACED = ("tests/virtualgpu/test_trace.py", "tests/browser/test_virtual_profile.py")
# What takes long is begun first, so that both workers end at about the same time.
LONG = (*CLUSTER, "tests/grader/", "tests/lab/test_start.py", "tests/browser/",
        "tests/minimegatron/", "tests/virtualgpu/")
PATIENCE = 120  # seconds for a worker to stop its clusters after ^C, before it is killed


def unit(name: str) -> str:
    """What a test is kept together with, by its name: tests/FOLDER/FILE.py::TEST."""
    together = next((start for start in (CLUSTER, TRACED) if name.startswith(start)), None)
    return " ".join(together) if together else name.partition("::")[0]


def turn(name: str) -> int:
    """Units are given out by their tests' turns, from 0."""
    return next((at for at, start in enumerate(LONG) if name.startswith(start)), len(LONG))


def scheduler(config: Any, log: Any) -> LoadScopeScheduling:
    """The plugin's, with our units in our order."""
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import NodeManager

    class Sharing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    NodeManager.EXIT_TIMEOUT = PATIENCE
    config.option.loadscopereorder = False  # not by the number of their tests
    return Sharing(config, log)

"""The distribution of tests among the workers of `make test` (pytest -n).

The tests of a file stay on one worker, since they use what its fixtures made. So do files with a
costly fixture in common. Those that use the common Slurm cluster are three units, each with a
cluster of its own: within one, jobs are not held up by other tests'; while they wait for Slurm the
cores are another worker's; and one unit of all would be the last to end by minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

CLUSTER = ("tests/slurmbox/", "tests/jobs/", "tests/examples/test_jobs.py",
           "tests/lablib/test_jobs.py", "tests/docs/test_commands.py")
LABS = ("tests/labs/test_run.py",)
HOME = tuple(f"tests/browser/test_{file}.py" for file in (
    "author", "steps", "tensorboard"))  # one JupyterLab
PAGES = ("tests/browser/test_every_lab.py", "tests/browser/test_lab.py")
TRACED = ("tests/virtualgpu/export/test_trace.py", "tests/browser/test_virtual_profile.py")
ESTIMATED = tuple(f"tests/labs/test_{file}.py" for file in (
    # Labs that were read and estimates are kept.
    "borrowed", "cluster_hardware", "discuss", "honest", "labs", "multi_node",
    "oracles", "pass_marks", "scripts", "single_node", "timetable", "welcome"))
UNITS = (LABS, CLUSTER, PAGES, HOME, TRACED, ESTIMATED)
# What takes long is begun first, so that the workers end at about the same time.
LONG = (*LABS, *CLUSTER, *PAGES, *ESTIMATED, "tests/grader/batch/test_slurm.py",
        "tests/grader/test_labs.py", "tests/grader/", "tests/attacks/",
        "tests/data/test_lab_data.py", "tests/lab/test_start.py", "tests/browser/",
        "tests/examples/", "tests/minimegatron/", "tests/virtualgpu/")
PATIENCE = 120  # seconds for a worker to stop its clusters after ^C, before it is killed


def unit(name: str) -> str:
    """Return the unit that a test belongs to, from its name: tests/FOLDER/FILE.py::TEST."""
    together = next((start for start in UNITS if name.startswith(start)), None)
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

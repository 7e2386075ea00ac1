"""Grading settings that an instructor may put into the course's nbgrader_config.py, for example
`c.Grading.seconds_per_cell = 120`."""

from __future__ import annotations

import hashlib
import json
import os

from traitlets import Float, Int, TraitError, Unicode, validate
from traitlets.config import Config, Configurable

from grader.sandbox.interface import Limits
from labcore.errors import LabError

MEGABYTE = 1_000_000
OPEN_FILES = 1024


class Grading(Configurable):
    """Limits for one submission, and how a batch runs. Times are elapsed seconds."""

    seconds_per_cell = Float(60, help="for one cell, or for all that one check asks for").tag(
        config=True)
    seconds_per_notebook = Float(600, help="for all of a submission's cells and checks").tag(
        config=True)
    memory_mb = Int(2048, help="of all the student's processes and files in memory").tag(
        config=True)
    disk_mb = Int(256, help="that the student's code may write, in all").tag(config=True)
    processes = Int(256, help="processes and threads at one time").tag(config=True)
    workers = Int(0, help="submissions graded at one time; 0: one per core").tag(config=True)
    sandbox = Unicode("", help="bubblewrap or podman; empty: the first that holds").tag(config=True)

    @validate("seconds_per_cell", "seconds_per_notebook", "memory_mb", "disk_mb", "processes")
    def _positive(self, proposal):
        if not 0 < proposal.value < float("inf"):
            raise TraitError(f"{proposal.trait.name} is {proposal.value}: give more than 0")
        return proposal.value

    @validate("workers")
    def _no_less_than_none(self, proposal):
        if proposal.value < 0:
            raise TraitError(f"workers is {proposal.value}: give 1 or more, or 0 for one per core")
        return proposal.value

    def limits(self) -> Limits:
        """Return the resource limits of a submission's sandbox."""
        disk = self.disk_mb * MEGABYTE
        return Limits(memory=self.memory_mb * MEGABYTE, processes=self.processes, file_size=disk,
                      disk=disk, open_files=OPEN_FILES, cpu_seconds=None)

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the settings that can change a result; workers do not."""
        names = ("seconds_per_cell", "seconds_per_notebook", "memory_mb", "disk_mb", "processes")
        text = json.dumps({name: getattr(self, name) for name in names})
        return hashlib.sha256(text.encode()).hexdigest()

    def worker_count(self) -> int:
        """Return `workers`, or the number of cores that this process may use."""
        return self.workers or len(os.sched_getaffinity(0))


def settings_of(config: Config) -> Grading:
    """Return the settings in a course's configuration. Raises LabError that names an invalid
    one."""
    known = Grading.class_traits(config=True)
    for name in config.get("Grading", {}):
        if name not in known:
            raise LabError(f"nbgrader_config.py: c.Grading.{name}: no such setting; "
                           f"the settings are {', '.join(sorted(known))}")
    try:
        return Grading(config=Config({"Grading": config.get("Grading", {})}))
    except TraitError as error:
        raise LabError(f"nbgrader_config.py: c.Grading: {error}") from error

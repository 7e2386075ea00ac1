"""The interface of a sandbox back end: its limits, and how to start a program in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from grader.sandbox.masks import SandboxMasks
from grader.sandbox.running import Running
from labcore.errors import LabError

MB, GB = 1 << 20, 1 << 30


class Unavailable(LabError):
    """Raised when no sandbox is safe: reports what leaked or what is missing, and what to
    install."""


@dataclass(frozen=True)
class Limits:
    """The limits of one sandbox, in bytes unless noted otherwise."""

    memory: int = 2 * GB  # sum over its processes and over its files, which are in memory
    processes: int = 128  # threads count: torch and BLAS start one for every core
    file_size: int = 128 * MB  # of a single file
    disk: int = 256 * MB  # in each of the folders it may write to; all of it counts as memory
    open_files: int = 512  # descriptors of one process
    cpu_seconds: int | None = None  # of one process

    def __post_init__(self) -> None:
        least = {"memory": 64 * MB, "processes": 4, "file_size": 4096, "disk": 64 * 1024,
                 "open_files": 16, "cpu_seconds": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value is None and name == "cpu_seconds":
                continue
            if not isinstance(value, int) or value < smallest:
                raise LabError(
                    f"limit {name}={value!r} of a sandbox: at least {smallest} is needed")


class Backend(Protocol):
    """A way to run a program in isolation."""

    name: str

    def start(self, command: Sequence[str], limits: Limits, *,
              files: Mapping[str, bytes] | None = None,
              environment: Mapping[str, str] | None = None,
              masks: SandboxMasks | None = None) -> Running:
        """Start a program in a new sandbox, which ends with the *thread* that started it.

        Args:
            command: the program and its arguments.
            limits: the sandbox's limits.
            files: extra files, by their path below the sandbox's home folder.
            environment: extra variables.
            masks: what its programs cannot see or import; keep it for as long as they run.

        Raises LabError for a file outside the home, Unavailable where nothing can be started.
        """
        ...

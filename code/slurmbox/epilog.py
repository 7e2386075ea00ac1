"""slurmd runs this when a job has ended on its node: kill what is left of the job there.

It catches processes whose slurmstepd was killed. They are known by their environment, of which
the arguments are one more NAME=VALUE each: in loopback mode another cluster on this machine may
have a job and a node with the same names. Standard library only: runs without site packages.
"""

import contextlib
import os
import signal
import sys

wanted = {word.encode() for word in (
    *(f"{name}={os.environ.get(name, '')}" for name in ("SLURM_JOB_ID", "SLURMD_NODENAME")),
    *sys.argv[1:])}
for entry in os.listdir("/proc"):
    if entry.isdigit() and int(entry) != os.getpid():
        with contextlib.suppress(OSError):
            with open(f"/proc/{entry}/environ", "rb") as file:
                words = file.read().split(b"\0")
            # Not this epilog's own shell, nor another of slurmd's. (A task says prolog_task.)
            of_slurmd = any(word.startswith(b"SLURM_SCRIPT_CONTEXT=") and word.endswith(b"_slurmd")
                            for word in words)
            if wanted.issubset(words) and not of_slurmd:
                os.kill(int(entry), signal.SIGKILL)

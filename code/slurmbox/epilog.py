"""Kill what is left of a job on this node; slurmd runs this when the job has ended there.

It catches processes whose slurmstepd was killed. They are recognized by their environment. The
arguments are further NAME=VALUE pairs that it must have, because in loopback mode another cluster
on this machine may have a job and a node with the same names. It runs without site-packages, so it
imports the standard library only.
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
            # Spare this epilog's own shell and slurmd's others. (A task has prolog_task.)
            of_slurmd = any(word.startswith(b"SLURM_SCRIPT_CONTEXT=") and word.endswith(b"_slurmd")
                            for word in words)
            if wanted.issubset(words) and not of_slurmd:
                os.kill(int(entry), signal.SIGKILL)

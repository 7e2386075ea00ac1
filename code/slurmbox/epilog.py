"""slurmd runs this when a job has ended on its node: kill what is left of the job there.

It catches processes whose slurmstepd was killed. They are known by their environment. Standard
library only: runs without site packages.
"""

import contextlib
import os
import signal

wanted = {f"{name}={os.environ.get(name, '')}".encode()
          for name in ("SLURM_JOB_ID", "SLURMD_NODENAME")}
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

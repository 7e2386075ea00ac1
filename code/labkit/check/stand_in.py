"""In place of srun, torchrun, python, scontrol, ...: write down what should run, and run nothing.

    python -I -S stand_in.py NAME ARGUMENTS...

labkit.check.record puts these in front of the PATH of a job script. Only srun does something: it
runs its command once per task, as Slurm would, so that what each task starts is written down.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from noting import linger, write_down


def main(name: str, arguments: list[str]) -> int:
    if name in ("srun", "scontrol"):
        import steps  # what it imports is most of a stand-in's time

        return steps.srun(arguments) if name == "srun" else steps.scontrol(arguments)
    if name == "hostname":
        print(os.environ.get("SLURMD_NODENAME", "localhost"))
        return 0
    launcher = ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")
    bare = [word for word in arguments if word != "-u"]
    if name.startswith("python") and tuple(bare[:2]) in launcher:
        name, arguments = "torchrun", bare[2:]
    if name.startswith("python") and (bare[:1] in (["-c"], ["-"]) or not bare):
        os.execv(sys.executable, [sys.executable, *arguments])  # a calculation: $(python -c ...)
    if "LAB_RECORD_STEP" not in os.environ:  # else srun has done so
        linger()
    is_python = name.startswith("python")
    write_down("python" if is_python else name, arguments)
    return ending() if is_python or name == "torchrun" else 0


def ending() -> int:
    """Leave the files that the check asks for, and return the exit code that it asks for."""
    for path in os.environ.get("LAB_RECORD_WRITES", "").splitlines():
        place = os.path.join(os.environ["LAB_HOME"], path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "a"):
            pass
    return int(os.environ.get("LAB_RECORD_EXIT", "0"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

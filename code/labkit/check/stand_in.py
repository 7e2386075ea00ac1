"""Stand in for srun, torchrun, python, scontrol, ...: record what should run, and run nothing.

    python -I -S stand_in.py RECORD HOME WRITES ENDS NAME ARGUMENTS...

labkit.check.record puts these in front of the PATH of a job script. Only srun does something: it
runs its command once per task, as Slurm would, so that what each task starts is recorded.
A program such as torchrun leaves the files WRITES (one a line) in HOME. Its exit code is that of
the first line of ENDS whose word is in one of its arguments, and 0 without such a line.
"""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from launch_record import append_launch, current_step, linger


def main(record: str, home: str, writes: str, ends: str, name: str, *given: str) -> int:
    arguments = list(given)
    step, process = current_step()
    if os.path.isdir(f"{record}.pinned"):
        import binding

        binding.inherit(record, process)
    if name in ("srun", "sbatch", "scontrol"):
        import steps  # what it imports is most of a stand-in's time

        return getattr(steps, name)(record, arguments)
    if name in ("taskset", "numactl"):
        import binding

        return binding.run(record, name, arguments)
    if name == "hostname":
        print(os.environ.get("SLURMD_NODENAME", "localhost"))
        return 0
    launcher = ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")
    bare = [word for word in arguments if word != "-u"]
    if name.startswith("python") and tuple(bare[:2]) in launcher:
        name, arguments = "torchrun", bare[2:]
    if name.startswith("python") and (bare[:1] in (["-c"], ["-"]) or not bare):
        os.execv(sys.executable, [sys.executable, *arguments])  # a calculation: $(python -c ...)
    if step < 0:  # else srun has done so
        linger(record)
    is_python = name.startswith("python")
    append_launch(record, "python" if is_python else name, arguments)
    if not is_python and name != "torchrun":
        return 0
    for path in writes.splitlines():
        place = os.path.join(home, path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "a"):
            pass
    for line in ends.splitlines():
        code, _, word = line.partition(" ")
        if not word or any(word in argument for argument in arguments):
            return int(code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

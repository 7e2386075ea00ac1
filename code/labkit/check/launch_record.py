"""Record what a job script starts, for stand_in.py, which runs without the environment.

A script starts several stand-ins, and importing json and signal would take longer than everything
else that one does. So this module writes its JSON itself, and uses the built-in part of signal.
"""

from __future__ import annotations

import _signal
import os
import time

# Environment variables of the cluster. A script that sets one changes what the trainer computes.
SETTINGS = ("VIRTUAL_GPU", "VIRTUAL_NETWORK", "DEVICE_INSTEAD_OF_CPU")
RECORDED_VARIABLES = (*SETTINGS, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                      "NODE_RANK", "OMP_NUM_THREADS", "SRUN_CPUS_PER_TASK", "SLURM_CPU_BIND_LIST",
                      "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES",
                      "TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
BACKGROUND_SECONDS, INTERVAL = 0.5, 0.05
STEP = "LAB_STEP"  # "STEP/PROCESS ID OF ITS SRUN": private, since a script may set SLURM_STEP_ID


def append_launch(record: str, program: str, arguments: list[str], step: int | None = None) -> None:
    """Append one line of JSON to the record, in one write, since several stand-ins may write at
    once.

    Args:
        record: the path of the record.
        program: the name of the program.
        step: the number of the job step; None for the current one.
    """
    if step is None:
        step, _ = current_step()
    task = os.environ.get("SLURM_PROCID", "")
    variables = [f"{_json(name)}: {_json(value)}" for name, value in os.environ.items()
                 if name in RECORDED_VARIABLES or name.startswith("PET_")]
    entry = {"program": _json(program), "arguments": f"[{', '.join(map(_json, arguments))}]",
             "step": str(step),
             "task": str(int(task)) if task.isdecimal() else "0",
             "host": _json(os.environ.get("SLURMD_NODENAME", "")),
             "folder": _json(_folder()),
             "background": "true" if in_background() else "false",
             "variables": f"{{{', '.join(variables)}}}"}
    line = "{" + ", ".join(f'"{name}": {value}' for name, value in entry.items()) + "}\n"
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def current_step() -> tuple[int, int]:
    """Return the number of the current job step and its srun's process ID; -1 and 0 without one."""
    step, _, srun = os.environ.get(STEP, "").partition("/")
    return (int(step), int(srun)) if step.isdecimal() and srun.isdecimal() else (-1, 0)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # the script has deleted it
        return ""


def _json(text: str) -> str:
    """Return a string as JSON, with everything but printable ASCII as UTF-16 escapes."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[at] << 8 | units[at + 1] for at in range(0, len(units), 2))
    return '"' + "".join(chr(code) if 32 <= code < 127 and code not in b'"\\'
                         else f"\\u{code:04x}" for code in codes) + '"'


def in_background() -> bool:
    """Return whether the script started this with &: without job control, bash lets it ignore
    SIGQUIT."""
    return _signal.getsignal(_signal.SIGQUIT) == _signal.SIG_IGN


def linger(record: str) -> None:
    """Delay a background process, so that a script that does not wait for it ends before it has
    started anything, as the job would.

    Only time in which the script's shell has nothing else to do counts: on a busy machine, its next
    command may take longer to start than the delay.
    """
    if in_background():
        mark = f"{record}.running{os.getpid()}"
        os.mkdir(mark)
        shell, idle = os.getppid(), 0.0
        while idle < BACKGROUND_SECONDS:
            time.sleep(INTERVAL)
            idle = 0.0 if _is_busy(shell) else idle + INTERVAL
        os.rmdir(mark)


def _is_busy(shell: int) -> bool:
    """Return whether a shell computes, or runs a command in the foreground."""
    try:
        with open(f"/proc/{shell}/task/{shell}/children") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/status") as file:
                ignored = next(line for line in file if line.startswith("SigIgn:"))
            if not int(ignored.split()[1], 16) >> (_signal.SIGQUIT - 1) & 1:
                return True
        with open(f"/proc/{shell}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "RD"
    except OSError:  # one of them has just ended
        return False

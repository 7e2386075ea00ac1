"""In place of srun, torchrun, python, scontrol, ...: write down what should run, and run nothing.

    python -I -S stand_in.py NAME ARGUMENTS...

labkit.check.record puts these in front of the PATH of a job script. Only srun does something: it
runs its command once per task, as Slurm would, so that what each task starts is written down.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import options

MOST_TASKS = 256
BACKGROUND_SECONDS = 0.5
KEPT = (*options.SETTINGS, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
        "NODE_RANK", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES")


def write_down(program: str, arguments: list[str]) -> None:
    entry = {"program": program, "arguments": arguments,
             "step": int(os.environ.get("LAB_RECORD_STEP", "-1")),  # -1: the script itself
             "task": int(os.environ.get("SLURM_PROCID", "0")),
             "host": os.environ.get("SLURMD_NODENAME", ""), "background": in_background(),
             "variables": {name: value for name, value in os.environ.items()
                           if name in KEPT or name.startswith("PET_")}}
    line = (json.dumps(entry) + "\n").encode()
    record = os.open(os.environ["LAB_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(record, line)
    os.close(record)


def in_background() -> bool:
    """Whether the script started this with &: without job control bash lets it ignore SIGQUIT."""
    return signal.getsignal(signal.SIGQUIT) == signal.SIG_IGN


def linger() -> None:
    """What runs in the background takes its time, so that a script which does not wait for it
    ends before it has started anything, as the job would."""
    if in_background():
        mark = f"{os.environ['LAB_RECORD']}.running{os.getpid()}"
        os.mkdir(mark)
        time.sleep(BACKGROUND_SECONDS)
        os.rmdir(mark)


def hosts_of(asked: dict[str, str]) -> list[str]:
    """The nodes of the job that a step may use, in their order. Raises BadOption."""
    there = options.expand(os.environ["SLURM_JOB_NODELIST"])
    named = options.expand(asked.get("nodelist", ""))
    if unknown := [name for name in named if name not in there]:
        raise options.BadOption(f"--nodelist {unknown[0]} is no node of this job; "
                                f"nearest: {there[0]}")
    first = options.count(asked["relative"], 1) if asked.get("relative", "0") != "0" else 0
    return sorted(there[first:], key=lambda name: name not in named)


def layout(asked: dict[str, str]) -> list[int]:
    """The number of tasks on each node of a step, as srun's defaults have it. Where the job has a
    number of tasks (SLURM_NTASKS), srun ignores an --ntasks-per-node that does not fit it."""
    env = os.environ
    allocated = int(env["SLURM_NNODES"])
    nodes = options.count(asked.get("nodes"), allocated)
    if nodes > allocated:
        raise options.BadOption(f"only {allocated} node(s) are allocated, {nodes} are asked for")
    given = asked.get("ntasks") or env.get("SLURM_NTASKS")
    if given is None:
        return [options.count(asked.get("ntasks-per-node"), 1)] * nodes
    tasks = options.count(given, nodes)
    nodes = min(nodes, tasks)
    share, rest = divmod(tasks, nodes)
    return [share + (node < rest) for node in range(nodes)]


def srun(arguments: list[str]) -> int:
    if "SLURM_JOB_NODELIST" not in os.environ:
        raise options.BadOption("it does not know its job: the SLURM_ variables are gone (env -i?)")
    asked, command = options.parse(arguments, "srun")
    tasks, names = layout(asked), hosts_of(asked)
    if not command or sum(tasks) > MOST_TASKS:
        write_down("srun-refused", [f"{sum(tasks)} tasks of {command[:1]}"])
        return 1
    if len(names) < len(tasks):
        raise options.BadOption(f"{len(tasks)} node(s) are asked for, {len(names)} are left")
    linger()
    step = next_step()
    task = status = 0
    whole = options.exported(asked.get("export") or os.environ.get("SLURM_EXPORT_ENV"),
                             dict(os.environ))
    for node, here in enumerate(tasks):
        for local in range(here):
            env = {**whole, "LAB_RECORD_STEP": str(step), "SLURM_STEP_ID": str(step),
                   "SLURM_NNODES": str(len(tasks)), "SLURM_STEP_NUM_NODES": str(len(tasks)),
                   "SLURM_PROCID": str(task), "SLURM_NODEID": str(node),
                   "SLURM_LOCALID": str(local), "SLURM_NTASKS": str(sum(tasks)),
                   "SLURMD_NODENAME": names[node]}
            status = subprocess.run(command, env=env, stdin=subprocess.DEVNULL).returncode or status
            task += 1
    return status


def next_step() -> int:
    """Steps that run side by side (srun ... &) must not get one number."""
    number = 0
    while True:
        try:
            os.mkdir(f"{os.environ['LAB_RECORD']}.step{number}")
            return number
        except FileExistsError:
            number += 1


def scontrol(arguments: list[str]) -> int:
    if arguments[:2] in (["show", "hostnames"], ["show", "hostname"]):
        hosts = arguments[2] if len(arguments) > 2 else os.environ["SLURM_JOB_NODELIST"]
        print("\n".join(options.expand(hosts)))
    elif arguments[:2] == ["show", "hostlist"] and len(arguments) > 2:
        print(arguments[2])
    return 0


def main(name: str, arguments: list[str]) -> int:
    if name == "srun":
        try:
            return srun(arguments)
        except options.BadOption as error:
            write_down("srun-refused", [str(error)])
            print(f"srun: error: {error}", file=sys.stderr)
            return 1
    if name == "scontrol":
        return scontrol(arguments)
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
    write_down("python" if name.startswith("python") else name, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

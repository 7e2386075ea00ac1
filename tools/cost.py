"""Run a command, and print the CPU time that it and all its descendants took.

python3 tools/cost.py COMMAND [ARGUMENT ..]

CPU-seconds compare machines and busy hours better than minutes do. `make test` may cost BASE with
the labs in BASE_LABS, and PER_LAB more for every other one. A higher cost is reported and is no
failure. Needs nothing but a Python 3, as it counts the making of .venv, too.
"""

import ctypes
import os
import resource
import signal
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BASE, PER_LAB = 1800, 80  # CPU-seconds
BASE_LABS = ("00", "01", "02", "03", "04", "07", "10", "11", "13", "14")
PR_SET_CHILD_SUBREAPER = 36


def budget(folder):
    """Return the CPU-seconds that `make test` may cost with the labs in this folder.

    Args:
        folder: of the labs' sources, NUMBER_NAME.py.
    """
    numbers = {name[:2] for name in os.listdir(folder) if name[:2].isdigit()}
    return BASE + PER_LAB * len(numbers - set(BASE_LABS))


def run(command):
    """Run a command. Return its exit code and the CPU-seconds of all its descendants.

    Daemons become children of this process when their parents end, so their time counts as well;
    not that of a process which still runs when the command has ended.
    """
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = os.spawnvp(os.P_NOWAIT, command[0], command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C reaches the command itself
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    status = None
    while True:
        try:
            pid, ended = os.waitpid(-1, 0 if status is None else os.WNOHANG)
        except ChildProcessError:
            break
        if pid == 0:
            break
        if pid == child:
            status = ended
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return os.waitstatus_to_exitcode(status), spent.ru_utime + spent.ru_stime


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: python3 tools/cost.py COMMAND [ARGUMENT ..]")
    began = time.monotonic()
    code, spent = run(sys.argv[1:])
    allowed = budget(os.path.join(ROOT, "solutions"))
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    over = "" if spent <= allowed else ", OVER BUDGET"
    print(f"cost: {spent:,.0f} CPU-seconds in {minutes} min {seconds} s "
          f"(budget: {allowed:,} CPU-seconds{over})", flush=True)
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()

"""python -I -S __main__.py STATE PROC ARGUMENT ..., by the wrapper that `lab cluster up` writes.

Without site packages, which takes half as long: so the course's code is found by its place.
"""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from job_monitor.nvidia_smi.cli import main

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
    # End as a program in C does, without a word. A shell's background jobs ignore ^C.
    if number == signal.SIGPIPE or signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

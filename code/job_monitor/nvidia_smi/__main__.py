"""Run python -I -S __main__.py STATE PROC ARGUMENT ..., as `lab cluster up`'s wrapper does.

Without site-packages, which -S skips, Python starts twice as fast, but must find our packages.
"""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from job_monitor.nvidia_smi.cli import main

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
    # End as a C program does, without a traceback. A shell's background jobs ignore Ctrl-C.
    if number == signal.SIGPIPE or signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

"""Run python -I -S __main__.py FOLDER NODE ARGUMENT ..., as the script on a program's PATH does.

Without site-packages, which -S skips, Python starts twice as fast, but must find this package.
"""

import signal
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from virtualgpu.smi import cli, job

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
    # End as a C program does, without a traceback. A shell's background jobs ignore Ctrl-C.
    if number == signal.SIGPIPE or signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
folder, node, *arguments = sys.argv[1:]
sys.exit(cli.main(partial(job.gpus, Path(folder), int(node)), arguments, labeled=False))

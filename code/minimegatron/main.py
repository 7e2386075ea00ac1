"""The program: parse the command line, train, and turn every error into one message."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from minimegatron.errors import UserError


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Train and end the process, with exit code 0, or 1 after an error."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        from minimegatron.arguments import parse_arguments
        from minimegatron.arguments.parse import notes

        config = parse_arguments(argv)
    except UserError as error:
        from minimegatron.failures import print_shared_error
        # Every rank reads the same command line, so one rank's message is enough.
        text = f"error: {error}".replace("\n", "\nerror: ")
        print_shared_error(text, os.environ.get("RANK", "0") == "0")
        leave(1)
    if config.exit_signal_handler:  # a signal during startup waits until Exits handles it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Slow to import, so only after the command line has been checked.
    from minimegatron.training import pretrain

    try:
        pretrain(config, notes(argv, config))
    except SystemExit as stop:  # an exit condition, such as --exit-interval
        leave(stop.code)
    except Exception as error:
        from minimegatron.failures import print_error

        print_error(error, config.rank)
        leave(1)
    leave(0)


def leave(code: int) -> NoReturn:
    """End the process without the interpreter's cleanup; all files are closed by now.

    During the cleanup, gloo's threads may still run, and C++ aborts a process whose threads outlive
    their objects ("terminate called without an active exception").
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

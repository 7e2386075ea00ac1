"""The program: arguments in, exit code out, and one message when something is wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from minimegatron.console import emit
from minimegatron.errors import SharedError, UserError, lost_peer

PATIENCE = 5  # seconds


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the trainer and end the process: 0 when it trained, 1 after a UserError."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        from minimegatron.arguments import parse_arguments
        from minimegatron.arguments.parse import notes

        config = parse_arguments(argv)
    except UserError as error:
        # Every rank reads the same command line: one of them says what is wrong with it.
        say_once(f"error: {error}", os.environ.get("RANK", "0") == "0")
        leave(1)
    if config.estimate:
        emit("error: --estimate trains nothing: give it to pretrain_gpt.py", sys.stderr)
        leave(1)
    if config.exit_signal_handler:  # during the start it waits: then Exits stops after one step
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    # Slow to import: after the command line is right.
    from minimegatron.training import pretrain
    from virtualgpu.core.errors import VirtualGpuError

    try:
        pretrain(config, notes(argv, config))
    except SharedError as error:
        say_once(f"[rank {config.rank}] error: {error}", config.rank == 0)
        leave(1)
    except (UserError, VirtualGpuError) as error:
        emit(f"[rank {config.rank}] error: {error}", sys.stderr)
        leave(1)
    except SystemExit as exit:
        leave(exit.code)
    except Exception as error:
        explain(error, config.rank)
        leave(1)
    leave(0)


def say_once(text: str, first: bool) -> None:
    """What all ranks know: `first` says it, the others give it time to."""
    if first:
        emit(text, sys.stderr)
    else:
        time.sleep(PATIENCE)  # a launcher ends all ranks when the first one fails


def explain(error: Exception, rank: int) -> None:
    """What to print of an error that nobody foresaw; call it where the error was caught."""
    lost = lost_peer(error)
    if lost is not None:
        emit(f"[rank {rank}] error: lost contact with another rank ({lost}); "
             "its own message says why", sys.stderr)
        return
    traceback.print_exc()
    # The words that people search a log for, whatever torch calls the exception today.
    name = "RuntimeError" if "out of memory" in str(error) else type(error).__name__
    emit(f"[rank {rank}] {name}: {error}", sys.stderr)


def leave(code: int) -> NoReturn:
    """End without the interpreter's own clean-up.

    gloo's threads may still run then, and C++ aborts a process ("terminate called without an
    active exception") whose threads outlive their objects. All files are closed by now.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

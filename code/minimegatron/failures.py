"""Messages of failures: a lost rank, a failed rendezvous, and errors that nobody foresaw.

A run that does not fail does not import this file.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import traceback

from minimegatron.arguments import Config
from minimegatron.console import emit

# Messages of gloo and NCCL when a peer has disconnected or does not respond.
LOST_PEER = re.compile(r"Connection (closed|reset|refused)[^.\n]*|Broken pipe|[Tt]imed out[^.\n]*|"
                       r"Watchdog[^.\n]*timeout|remote process has? exited[^.\n]*")


def lost_peer(error: Exception) -> str | None:
    """Return the library's message if the error means that another rank failed, else None."""
    found = LOST_PEER.search(str(error))
    return found and found.group()


def print_unexpected_error(error: Exception, rank: int) -> None:
    """Print an error that is not a UserError; call it inside the `except` block.

    A lost peer becomes one line; anything else keeps its traceback.
    """
    lost = lost_peer(error)
    if lost is not None:
        emit(f"[rank {rank}] error: lost contact with another rank ({lost}); "
             "its own message says why", sys.stderr)
        return
    traceback.print_exc()
    # People search logs for these words, whatever torch calls the exception today.
    name = "RuntimeError" if "out of memory" in str(error) else type(error).__name__
    emit(f"[rank {rank}] {name}: {error}", sys.stderr)


def rendezvous_error(config: Config, error: str) -> str:
    """Return why the rendezvous failed, in the user's terms, from torch's message."""
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if "EADDRINUSE" in error:
        with socket.socket() as probe:
            probe.bind(("", 0))
            free = probe.getsockname()[1]
        return (f"MASTER_PORT {port} on {socket.gethostname()} is taken by another program; "
                f"a free one: MASTER_PORT={free}")
    return (f"rank {config.rank} of {config.world_size} on {socket.gethostname()} cannot "
            f"rendezvous with the others at MASTER_ADDR:MASTER_PORT {address}:{port}: "
            f"{error.splitlines()[0]}")

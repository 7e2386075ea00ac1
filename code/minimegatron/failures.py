"""Messages of failures: errors of all ranks, a lost rank, a failed rendezvous, and the unforeseen.

A run that does not fail does not import this file.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Sequence

from minimegatron.arguments import Config
from minimegatron.errors import SharedError, UserError, emit
from pipeline_schedules import Message
from pipeline_schedules.messages import SEND
from virtualgpu.core.errors import VirtualGpuError

RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
GRACE = 5  # seconds until a launcher that saw one rank fail ends the others
LAST_EXCHANGE = 0.5  # seconds until all ranks have left the collective that shared an error

# Messages of gloo and NCCL when a peer has disconnected or does not respond.
LOST_PEER = re.compile(r"Connection (closed|reset|refused)[^.\n]*|Broken pipe|[Tt]imed out[^.\n]*|"
                       r"Watchdog[^.\n]*timeout|remote process has? exited[^.\n]*")


def print_error(error: Exception, rank: int) -> None:
    """Print an error that ended training; call it inside the `except` block."""
    if isinstance(error, SharedError):
        print_shared_error(f"[rank {rank}] error: {error}", rank == 0)
        if rank == 0:  # peers report a rank that exits earlier as lost
            time.sleep(LAST_EXCHANGE)
    elif isinstance(error, (UserError, VirtualGpuError)):
        emit(f"[rank {rank}] error: {error}", sys.stderr)
    else:
        print_unexpected_error(error, rank)


def print_shared_error(text: str, is_rank_0: bool) -> None:
    """Print an error that every rank raised, from rank 0 only.

    The other ranks wait before they exit, because a launcher ends all ranks when the first exits.
    """
    if is_rank_0:
        emit(text, sys.stderr)
    else:
        time.sleep(GRACE)


def lost_peer(error: Exception) -> str | None:
    """Return the library's message if the error means that another rank failed, else None."""
    match = LOST_PEER.search(str(error))
    return match and match.group()


def lost_stage(message: Message, ranks: Sequence[int], error: Exception) -> str:
    """Return the error of a rank that cannot reach another stage of its pipeline.

    Args:
        message: the one that this rank was sending or waiting for.
        ranks: the global ranks of the pipeline's stages.
        error: the library's.
    """
    sends = message.end == SEND
    stage = message.target if sends else message.source
    doing = f"while {'sending' if sends else 'waiting for'} {message.action}"
    return (f"lost contact with rank {ranks[stage]} (stage {stage}) {doing} "
            f"({lost_peer(error) or error}); its own message says why")


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
    missing = [name for name in RENDEZVOUS if name not in os.environ]
    if missing:
        return (f"RANK is set but {', '.join(missing)} is not: start the ranks with "
                "torchrun, which sets all of them")
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

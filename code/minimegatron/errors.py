"""The one exception whose text is meant for the user, and how a lost peer is told from the rest."""

from __future__ import annotations

import re

# What gloo and NCCL say when the other end is gone or silent.
LOST_PEER = re.compile(r"Connection (closed|reset|refused)[^.\n]*|Broken pipe|[Tt]imed out[^.\n]*|"
                       r"Watchdog[^.\n]*timeout|remote process has? exited[^.\n]*")


class UserError(Exception):
    """Something the user can mend; programs print `error: TEXT` on stderr and exit with 1."""


class SharedError(UserError):
    """One that all ranks raise at the same point, with the same text: rank 0 alone says it."""


def lost_peer(error: Exception) -> str | None:
    """The words in which the library says so, when another rank is gone or silent; else None."""
    found = LOST_PEER.search(str(error))
    return found and found.group()

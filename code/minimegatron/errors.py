"""Errors whose text is meant for the user, and the detection of a rank that has failed."""

from __future__ import annotations

import re

# Messages of gloo and NCCL when a peer has disconnected or does not respond.
LOST_PEER = re.compile(r"Connection (closed|reset|refused)[^.\n]*|Broken pipe|[Tt]imed out[^.\n]*|"
                       r"Watchdog[^.\n]*timeout|remote process has? exited[^.\n]*")


class UserError(Exception):
    """An error that the user can fix; programs print `error: TEXT` to stderr and exit with 1."""


class SharedError(UserError):
    """An error that every rank raises at the same point; only rank 0 prints it."""


def lost_peer(error: Exception) -> str | None:
    """Return the library's message if the error means that another rank failed, else None."""
    found = LOST_PEER.search(str(error))
    return found and found.group()

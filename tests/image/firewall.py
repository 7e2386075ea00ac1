"""The rules that netavark, podman's network stack, adds to this machine's firewall.

It removes a network's own rules with the network, but never those that all networks share.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from collections.abc import Iterator

NETWORK = re.compile(r":NETAVARK-[0-9A-F]{10}")  # the chain of one network


def saved() -> list[str]:
    return subprocess.run(["iptables-save"], capture_output=True, text=True,
                          check=True).stdout.splitlines()


def rules() -> list[str]:
    """Return netavark's rules; only root can see them."""
    return [] if os.getuid() else sorted(line for line in saved() if "NETAVARK" in line)


def forget() -> None:
    """Delete netavark's rules, then its empty chains, unless a network still needs them."""
    if os.getuid() or any(map(NETWORK.match, saved())):
        return
    for first, action in (("-A ", "-D"), (":", "-X")):
        table = ""
        for line in saved():
            if line.startswith("*"):
                table = line[1:]
            elif line.startswith(first) and "NETAVARK" in line:
                words = shlex.split(line.removeprefix(first))
                subprocess.run(["iptables", "--wait", "-t", table, action,
                                *(words if action == "-D" else words[:1])], check=True)


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Leave the firewall as it was, whichever networks are made and removed meanwhile."""
    before = rules()
    yield
    if not before:
        forget()
    assert rules() == before

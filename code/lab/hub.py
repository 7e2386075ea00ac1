"""Start the single-user server of a JupyterHub: `lab start --hub`.

The hub sets the address and the base path in the environment, and authenticates its own users, so
there is no token. Everything else is as in lab/jupyter.py.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from lab.jupyter import LOOPBACK, Jupyter
from labcore.errors import LabError

URL, PREFIX = "JUPYTERHUB_SERVICE_URL", "JUPYTERHUB_SERVICE_PREFIX"


class HubAddress(NamedTuple):
    """The address and the base path at which the hub expects the user's server."""

    ip: str
    port: int
    prefix: str


def address_from(variables: Mapping[str, str]) -> HubAddress:
    """Return the address in a hub's environment variables. Raises LabError if there is none."""
    url = variables.get(URL, "")
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not (parts.scheme == "http" and parts.hostname and port):
        raise LabError(f"--hub: only a JupyterHub can start this, and {URL} is {url!r}, not "
                       "http://ADDRESS:PORT/...; without a hub, leave --hub out")
    return HubAddress(parts.hostname, port, variables.get(PREFIX) or "/")


class HubServer(Jupyter):
    """A jupyterhub-singleuser server."""

    def __init__(self, home: Path, environment: dict[str, str], address: HubAddress,
                 arguments: Sequence[str], instructor: bool = False, own: Path | None = None
                 ) -> None:
        """Start the server.

        Args:
            home: the folder that it shows.
            environment: further environment variables.
            arguments: the hub's arguments for jupyterhub-singleuser.
            instructor: enable nbgrader's extensions for instructors.
            own: see Jupyter.
        """
        self.arguments = list(arguments)
        ip = {"localhost": LOOPBACK, "::": "[::1]"}.get(address.ip, address.ip)
        super().__init__(home, environment, address.port, ip, instructor, address.prefix, own)

    def _make_token(self) -> str:
        return ""  # the hub authenticates its users

    def _choose_port(self) -> int:
        return self.wanted  # the hub chose it; if it is taken, the server reports that

    def _program(self) -> list[str]:
        return ["-m", "jupyterhub.singleuser", *self.arguments]

    def _probe(self) -> urllib.request.Request:
        return urllib.request.Request(f"{self.root}/api")  # the server's version, without a token

    @property
    def address(self) -> str:
        return f"{self.root}/lab, behind the hub"

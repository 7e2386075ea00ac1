"""Start the single-user server of a JupyterHub: `lab start --hub`.

The hub sets the address and the base path in the environment, and authenticates its own users
without a token; everything else is as in lab/jupyter.py.
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


class Place(NamedTuple):
    """Address and base path at which the hub expects its user's server."""

    ip: str
    port: int
    prefix: str


def place_from(variables: Mapping[str, str]) -> Place:
    """Raises LabError where no hub has said it."""
    url = variables.get(URL, "")
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if not (parts.scheme == "http" and parts.hostname and port):
        raise LabError(f"--hub is for what a JupyterHub starts, and {URL} is {url!r}, not "
                       "http://ADDRESS:PORT/...: without a hub, leave --hub out")
    return Place(parts.hostname, port, variables.get(PREFIX) or "/")


class HubServer(Jupyter):
    """jupyterhub-singleuser; `arguments` are the hub's own."""

    def __init__(self, home: Path, environment: dict[str, str], place: Place,
                 arguments: Sequence[str], instructor: bool = False, own: Path | None = None
                 ) -> None:
        self.arguments = list(arguments)
        ip = {"localhost": LOOPBACK, "::": "[::1]"}.get(place.ip, place.ip)
        super().__init__(home, environment, place.port, ip, instructor, place.prefix, own)

    def _make_token(self) -> str:
        return ""  # the hub asks its users who they are

    def _choose_port(self) -> int:
        return self.wanted  # the hub's choice; if it is taken, the server itself says so

    def _program(self) -> list[str]:
        return ["-m", "jupyterhub.singleuser", *self.arguments]

    def _question(self) -> urllib.request.Request:
        return urllib.request.Request(f"{self.root}/api")  # open to all: it is the server's version

    @property
    def address(self) -> str:
        return f"{self.root}/lab, behind the hub"

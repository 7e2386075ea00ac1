"""Name the addresses on which a cluster's daemons listen."""

from __future__ import annotations

from dataclasses import dataclass

from slurmbox import namespaces

CONTROLLER, INTERFACE = "controller", "eth0"  # of the containers' network
COMPOSE = "docker compose -f docker/compose.yml"


@dataclass(frozen=True)
class ClusterNetwork:
    """The addresses of a cluster's daemons.

    Attributes:
        mode: "namespaces", "loopback", or "containers".
        controller_port: slurmctld's TCP port.
        accounting_port: slurmdbd's TCP port.
        node_ports: the TCP port of each slurmd in loopback mode.
    """

    mode: str
    controller_port: int = 6817
    accounting_port: int = 6819
    node_ports: tuple[int, ...] = ()

    @property
    def loopback(self) -> bool:
        return self.mode == "loopback"

    @property
    def containers(self) -> bool:
        return self.mode == "containers"

    @property
    def controller(self) -> str:
        """The controller's host and address in the form that SlurmctldHost expects."""
        names = {"loopback": "localhost(127.0.0.1)", "containers": CONTROLLER}
        return names.get(self.mode, "login")

    @property
    def interface(self) -> str:
        return {"loopback": "lo", "containers": INTERFACE}.get(self.mode, namespaces.INTERFACE)

    def node_address(self, index: int, name: str) -> str:
        """Return a node's address; a container's is its name, which /etc/hosts resolves."""
        if self.containers:
            return name
        return "127.0.0.1" if self.loopback else namespaces.address(index)

    def node_port(self, index: int) -> int:
        return self.node_ports[index] if self.loopback else 6818

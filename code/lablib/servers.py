"""Describe three servers for lab 01: their topology matrices, and the rings of their GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations

from virtualgpu.core.cards import find
from virtualgpu.net.intranode import GpuSlot, pair
from virtualgpu.net.nodes import NODES
from virtualgpu.smi import table

GPUS = 8  # per server
SLOWEST_FIRST = ("SYS", "NODE", "PHB", "PXB", "PIX")  # followed by NV1, NV2, ...


@dataclass(frozen=True)
class Server:
    """The wiring of a server.

    Attributes:
        cells: the rows of its GPUs, then those of its NICs, without the names.
        numa: the NUMA node of each GPU.
        numa_nodes: the number of NUMA nodes.
        cores: the number of cores, with two hardware threads each.
    """

    cells: tuple[tuple[str, ...], ...]
    numa: tuple[int, ...]
    numa_nodes: int
    cores: int

    def affinity(self, gpu: int) -> str:
        """Return the hardware threads on a GPU's NUMA node."""
        per_node = self.cores // self.numa_nodes
        first = self.numa[gpu] * per_node
        return ",".join(f"{start}-{start + per_node - 1}" for start in (first, self.cores + first))


def _dgx(card: str, cores: int) -> Server:
    """Return the DGX server of a GPU model."""
    sheet = find(card)
    node = NODES[sheet.node]
    cells = table.links([GpuSlot(sheet, slot) for slot in range(GPUS)], node.adapters)
    return Server(tuple(map(tuple, cells)), tuple(slot.numa for slot in node.slots),
                  node.numa_nodes, cores)


# One NVLink bridge per pair of GPUs on one socket, and cascaded switches on the other. So the ring
# of three or four GPUs with the most bandwidth in total is not the best one.
CASCADED = """
X    NV4  NODE NODE SYS  SYS  SYS  SYS  PXB
NV4  X    NODE NODE SYS  SYS  SYS  SYS  PXB
NODE NODE X    NV4  SYS  SYS  SYS  SYS  NODE
NODE NODE NV4  X    SYS  SYS  SYS  SYS  NODE
SYS  SYS  SYS  SYS  X    PXB  PXB  PXB  SYS
SYS  SYS  SYS  SYS  PXB  X    PXB  PXB  SYS
SYS  SYS  SYS  SYS  PXB  PXB  X    PIX  SYS
SYS  SYS  SYS  SYS  PXB  PXB  PIX  X    SYS
PXB  PXB  NODE NODE SYS  SYS  SYS  SYS  X
"""
SERVERS = {
    "DGX-1 (V100)": _dgx("v100", cores=40),
    "DGX A100": _dgx("a100", cores=128),
    "dual-socket PCIe server": Server(
        tuple(tuple(table.SELF if cell == "X" else cell for cell in line.split())
              for line in CASCADED.strip().splitlines()),
        numa=(0, 0, 0, 0, 1, 1, 1, 1), numa_nodes=2, cores=32)}


def topology(server: str, order: Sequence[int] = range(GPUS)) -> str:
    """Return the output of `nvidia-smi topo -m`, without the NUMA columns, to fit a notebook.

    Args:
        server: a key of SERVERS.
        order: the GPUs of the server's cells, in the order of their numbers in the output.

    Raises:
        KeyError: there is no such server.
    """
    wiring = SERVERS[server]
    devices = [*order, *range(GPUS, len(wiring.cells))]
    return table.topology([f"GPU{number}" for number in range(GPUS)],
                          [[wiring.cells[one][other] for other in devices] for one in devices],
                          {"CPU Affinity": [wiring.affinity(gpu) for gpu in order]})


def matrix(server: str, order: Sequence[int] = range(GPUS)) -> list[list[str]]:
    """Return the entries between the GPUs of a server, "X" for a GPU itself.

    Args:
        server: a key of SERVERS.
        order: the GPUs of the server's cells, in the order of their numbers.

    Raises:
        KeyError: there is no such server.
    """
    cells = SERVERS[server].cells
    return [[cells[one][other].strip() for other in order] for one in order]


def ring_seconds(card: str, ring: Sequence[int], size: int) -> float:
    """Return the modeled seconds of a ring all-reduce over the GPUs of a node, in this order.

    In each of the 2(n-1) steps, every GPU sends one n-th of the tensor to the next GPU, and all
    wait for the slowest hop. (NCCL would choose a better order by itself, and use several rings.)

    Args:
        card: the GPU model.
        ring: the numbers of the GPUs on the node.
        size: the size of the tensor, in bytes.
    """
    hops = _hop_seconds(card, size / len(ring))
    slowest = max(hops[one][other] for one, other in zip(ring, [*ring[1:], ring[0]], strict=True))
    return 2 * (len(ring) - 1) * slowest


@lru_cache
def best_ring_seconds(card: str, count: int, size: int) -> float:
    """Return the smallest ring_seconds of `count` GPUs of a node, found by trying all rings."""
    return min(ring_seconds(card, ring, size) for ring in _rings(GPUS, count))


@lru_cache
def _hop_seconds(card: str, size: float) -> list[list[float]]:
    """Return the modeled seconds that each GPU of a node needs to send some bytes to each other."""
    seats = [GpuSlot(find(card), gpu) for gpu in range(GPUS)]
    links = [[None if one is other else pair(one, other) for other in seats] for one in seats]
    return [[link.latency + size / link.effective if link else math.inf for link in row]
            for row in links]


def speed(link: str) -> int:
    """Return a link's rank among all links: a faster one has a larger number."""
    return 10 + int(link[2:]) if link.startswith("NV") else SLOWEST_FIRST.index(link)


def fastest(links: Sequence[Sequence[str]], count: int) -> str:
    """Return the slowest hop of the best ring, found by trying all rings.

    Args:
        links: the entries between the GPUs.
        count: the number of GPUs in the ring, at least 2.
    """
    return _fastest(tuple(map(tuple, links)), count)


@lru_cache
def _fastest(links: tuple[tuple[str, ...], ...], count: int) -> str:
    return max((min(_hops(links, ring), key=speed) for ring in _rings(len(links), count)),
               key=speed)


def _rings(gpus: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield all rings of some GPUs. A ring has no beginning, so each one starts at its lowest."""
    return ((first, *rest) for first, *others in combinations(range(gpus), count)
            for rest in permutations(others))


def _hops(links: Sequence[Sequence[str]], ring: Sequence[int]) -> list[str]:
    """Return the links of a ring, including the one from the last GPU to the first."""
    return [links[one][other] for one, other in zip(ring, [*ring[1:], ring[0]], strict=True)]


def is_ring(ring: object, count: int, gpus: int = GPUS) -> bool:
    """Return whether an answer is a list of different GPU numbers.

    Args:
        ring: the answer.
        count: the number of GPUs that it should have.
        gpus: the number of GPUs of the server.
    """
    return (isinstance(ring, list) and all(type(gpu) is int for gpu in ring)
            and len(ring) == count == len({*ring} & {*range(gpus)}))


def slowest_hop(links: Sequence[Sequence[str]], ring: Sequence[int]) -> dict:
    """Return the slowest hop of a ring.

    Args:
        links: the entries between the GPUs.
        ring: GPU numbers.

    Returns:
        A dictionary with "link", "from", "to", "closes" (whether it is the hop back to the first
        GPU), and "enough" (whether no ring has a faster slowest hop).
    """
    count, hops = len(ring), _hops(links, ring)
    at = min(range(count), key=lambda at: speed(hops[at]))
    return {"link": hops[at], "from": ring[at], "to": ring[(at + 1) % count],
            "closes": count > 2 and at == count - 1,
            "enough": speed(hops[at]) >= speed(fastest(links, count))}

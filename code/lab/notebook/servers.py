"""What `nvidia-smi topo -m` prints on three kinds of servers, and rings of their GPUs (lab 01)."""

from __future__ import annotations

from collections.abc import Sequence

# One row per GPU: its links to all GPUs and to the NICs, and its CPUs. The DGX-1's links are those
# of github.com/NVIDIA/nccl issue 671, the DGX A100's those of issue 1505; the last server has an
# NVLink bridge for each pair of GPUs below one socket, and cascaded switches below the other, so
# the ring of three or four GPUs with the most bandwidth in total is not the best one.
CUBE_MESH = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS PIX SYS PHB SYS 0-19,40-59
NV1 X   NV2 NV1 SYS NV2 SYS SYS PIX SYS PHB SYS 0-19,40-59
NV1 NV2 X   NV2 SYS SYS NV1 SYS PHB SYS PIX SYS 0-19,40-59
NV2 NV1 NV2 X   SYS SYS SYS NV1 PHB SYS PIX SYS 0-19,40-59
NV2 SYS SYS SYS X   NV1 NV1 NV2 SYS PIX SYS PHB 20-39,60-79
SYS NV2 SYS SYS NV1 X   NV2 NV1 SYS PIX SYS PHB 20-39,60-79
SYS SYS NV1 SYS NV1 NV2 X   NV2 SYS PHB SYS PIX 20-39,60-79
SYS SYS SYS NV1 NV2 NV1 NV2 X   SYS PHB SYS PIX 20-39,60-79
"""
SWITCHED = """
X    NV12 NV12 NV12 NV12 NV12 NV12 NV12 PXB SYS 48-63,176-191
NV12 X    NV12 NV12 NV12 NV12 NV12 NV12 PXB SYS 48-63,176-191
NV12 NV12 X    NV12 NV12 NV12 NV12 NV12 SYS SYS 16-31,144-159
NV12 NV12 NV12 X    NV12 NV12 NV12 NV12 SYS SYS 16-31,144-159
NV12 NV12 NV12 NV12 X    NV12 NV12 NV12 SYS SYS 112-127,240-255
NV12 NV12 NV12 NV12 NV12 X    NV12 NV12 SYS SYS 112-127,240-255
NV12 NV12 NV12 NV12 NV12 NV12 X    NV12 SYS PXB 80-95,208-223
NV12 NV12 NV12 NV12 NV12 NV12 NV12 X    SYS PXB 80-95,208-223
"""
PCIE = """
X    NV4  NODE NODE SYS SYS SYS SYS PXB  0-15,32-47
NV4  X    NODE NODE SYS SYS SYS SYS PXB  0-15,32-47
NODE NODE X    NV4  SYS SYS SYS SYS NODE 0-15,32-47
NODE NODE NV4  X    SYS SYS SYS SYS NODE 0-15,32-47
SYS  SYS  SYS  SYS  X   PXB PXB PXB SYS  16-31,48-63
SYS  SYS  SYS  SYS  PXB X   PXB PXB SYS  16-31,48-63
SYS  SYS  SYS  SYS  PXB PXB X   PIX SYS  16-31,48-63
SYS  SYS  SYS  SYS  PXB PXB PIX X   SYS  16-31,48-63
"""
SERVERS = {"DGX-1 (V100)": CUBE_MESH, "DGX A100": SWITCHED, "dual-socket PCIe server": PCIE}
# The link at the slowest hop of the best ring, by the number of GPUs in it.
BEST = {"DGX-1 (V100)": {2: "NV2", 3: "NV1", 4: "NV1"},
        "DGX A100": {2: "NV12", 3: "NV12", 4: "NV12"},
        "dual-socket PCIe server": {2: "NV4", 3: "PXB", 4: "PXB"}}
SLOWEST_FIRST = ("SYS", "NODE", "PHB", "PXB", "PIX")  # and then NV1, NV2, ...
LEGEND = """

Legend:

  X    = Self
  SYS  = PCIe, and the interconnect between the sockets' NUMA nodes (QPI, UPI)
  NODE = PCIe, and the interconnect between PCIe host bridges within a NUMA node
  PHB  = PCIe, and a PCIe host bridge (typically the CPU)
  PXB  = several PCIe bridges, but no PCIe host bridge
  PIX  = at most a single PCIe bridge
  NV#  = a bonded set of # NVLinks
"""


def matrix(server: str) -> list[list[str]]:
    """Return the rows of a server as lists of words. Raises KeyError for an unknown server."""
    return [line.split() for line in SERVERS[server].strip().splitlines()]


def topology(server: str, order: Sequence[int] = range(8)) -> str:
    """Return what `nvidia-smi topo -m` prints.

    Args:
        server: a key of SERVERS.
        order: which GPU of the rows above has the number 0, 1, and so on.
    """
    rows = matrix(server)
    nics = range(len(rows), len(rows[0]) - 1)
    names = [f"GPU{new}" for new in range(len(rows))] + [f"mlx5_{nic - len(rows)}" for nic in nics]
    lines = ["\t".join(["", *names, "CPU Affinity"])]
    for new, old in enumerate(order):
        links = [" X " if old == other else rows[old][other] for other in order]
        lines.append("\t".join([names[new], *links, *rows[old][len(rows):]]))
    for nic in nics:
        links = [rows[old][nic] for old in order] + [" X " if nic == one else "SYS" for one in nics]
        lines.append("\t".join([names[nic], *links]))
    return "\n".join(lines) + LEGEND


def speed(link: str) -> int:
    """Return a link's rank among all links: a faster one has a larger number."""
    return 10 + int(link[2:]) if link.startswith("NV") else SLOWEST_FIRST.index(link)


def is_ring(ring: object, count: int) -> bool:
    """Return whether this is a list of different GPU numbers.

    Args:
        ring: an answer.
        count: how many GPUs it should have.
    """
    return (isinstance(ring, list) and all(type(gpu) is int for gpu in ring)
            and len(ring) == count == len({*ring} & {*range(8)}))


def slowest_hop(server: str, order: Sequence[int], ring: Sequence[int]) -> dict:
    """Return the slowest hop of a ring.

    Args:
        server: a key of SERVERS.
        order: the numbering of the GPUs, as in `topology`.
        ring: GPU numbers.

    Returns a dictionary: "link", "from", "to", "closes" (whether it is the hop back to the first
    GPU), and "enough" (whether no ring has a faster slowest hop).
    """
    rows, count = matrix(server), len(ring)
    _, at, link = min((speed(rows[order[one]][order[other]]), at, rows[order[one]][order[other]])
                      for at, (one, other) in enumerate(zip(ring, [*ring[1:], ring[0]],
                                                            strict=True)))
    return {"link": link, "from": ring[at], "to": ring[(at + 1) % count],
            "closes": count > 2 and at == count - 1,
            "enough": speed(link) >= speed(BEST[server][count])}

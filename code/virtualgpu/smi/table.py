"""Format the output of `nvidia-smi` for people: the table, the list, and the topology matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from virtualgpu.net import intranode
from virtualgpu.net.intranode import GpuSlot
from virtualgpu.net.nodes import NODES, DeviceLocation, NodeType
from virtualgpu.smi.gpus import Gpu

MODELED = "virtual GPUs: modeled, no hardware"
SELF = " X "
WIDTH = 87
RULE = f"+{'-' * 41}+{'-' * 22}+{'-' * 22}+"
HEAD = f"""\
+{'-' * WIDTH}+
| NVIDIA-SMI virtual                Driver Version: virtual      CUDA Version: virtual  |
|{'-' * 41}+{'-' * 22}+{'-' * 22}|
| GPU  Name                 Persistence-M | Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |         Memory-Usage | GPU-Util  Compute M. |
|                                         |                      |               MIG M. |
|{'=' * 41}+{'=' * 22}+{'=' * 22}|"""
PROCESSES = f"""\
+{'-' * WIDTH}+
| Processes:                                                                            |
|  GPU   GI   CI        PID   Type   Process name                            GPU Memory |
|        ID   ID                                                             Usage      |
|{'=' * WIDTH}|"""
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes \
(e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges \
within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def table(node: str, gpus: list[Gpu]) -> str:
    lines = [f"{datetime.now():%a %b %d %H:%M:%S %Y}   {node} ({MODELED})", HEAD]
    for gpu in gpus:
        memory = f"{gpu.used}MiB / {gpu.total}MiB"
        lines += [
            f"|{gpu.index:4d}  {gpu.card.product:<28}{'N/A':>6} | {gpu.bus_id} N/A "
            f"|{'N/A':>21} |",
            f"| N/A   N/A   N/A {'N/A /  N/A':>23} |{memory:>21} |{gpu.percent:>7}%"
            f"{'Default':>13} |",
            f"|{'':41}|{'':22}|{'N/A':>21} |", RULE]
    lines += [" " * (WIDTH + 2), PROCESSES]
    busy = [gpu for gpu in gpus if gpu.process]
    lines += [f"|{gpu.index:5d}   N/A  N/A {gpu.process.pid:9d}      C   {'python':<35}"
              f"{f'{gpu.used}MiB':>15} |" for gpu in busy]
    if not busy:
        lines.append(f"|{'  No running processes found':<{WIDTH}}|")
    return "\n".join([*lines, f"+{'-' * WIDTH}+"]) + "\n"


def listing(gpus: list[Gpu]) -> str:
    return "".join(f"GPU {gpu.index}: {gpu.product} (UUID: {gpu.uuid})\n" for gpu in gpus)


def matrix(gpus: list[Gpu], adapters: bool = False) -> str:
    """Return the topology matrix of one node.

    Args:
        gpus: the GPUs to show, at least one.
        adapters: whether the node has the InfiniBand adapters of its type.
    """
    node = NODES[gpus[0].card.node]
    positions = [GpuSlot(gpu.card, gpu.number) for gpu in gpus]
    cells = links(positions, node.adapters if adapters else ())
    names = [f"GPU{gpu.index}" for gpu in gpus]
    threads, numa = zip(*(affinity(position, gpus[0].cpus) for position in positions), strict=True)
    columns = {"CPU Affinity": threads, "NUMA Affinity": numa,
               "GPU NUMA ID": ["\tN/A"] * len(gpus)}
    return f"{topology(names, cells, columns)}\n{modeled_notice(node)}"


def links(positions: Sequence[GpuSlot], nics: Sequence[DeviceLocation]) -> list[list[str]]:
    """Return the cells of the matrix: a row for each GPU of one node, then one for each NIC.

    Args:
        positions: the positions of the GPUs in the node.
        nics: the positions of the InfiniBand adapters in the node.
    """
    rows = [[*(gpu_link(one, other) for other in positions),
             *(adapter_link(one, nic) for nic in nics)] for one in positions]
    node = NODES[positions[0].card.node]
    for number, one in enumerate(nics):
        cells = [*(adapter_link(position, one) for position in positions),
                 *(node.path(one, other) for other in nics)]
        cells[len(positions) + number] = SELF
        rows.append(cells)
    return rows


def topology(gpus: Sequence[str], cells: Sequence[Sequence[str]],
             columns: Mapping[str, Sequence[str]]) -> str:
    """Return the matrix and its legends in the format of `nvidia-smi topo -m`.

    Args:
        gpus: the names of the GPUs.
        cells: the rows of the GPUs, then those of the NICs, as from `links`.
        columns: further columns by title, with a value for each GPU.
    """
    nics = range(len(cells) - len(gpus))
    names = [*gpus, *(f"NIC{number}" for number in nics)]
    ends = [*zip(*columns.values(), strict=True), *[()] * len(nics)]
    rows = [["", *names, *columns],
            *([name, *row, *end] for name, row, end in zip(names, cells, ends, strict=True))]
    text = "\n".join("\t".join(row) for row in rows) + "\n" + LEGEND
    legend = "".join(f"  NIC{number}: mlx5_{number}\n" for number in nics)
    return f"{text}\nNIC Legend:\n\n{legend}" if nics else text


def gpu_link(one: GpuSlot, other: GpuSlot) -> str:
    """Return the cell of two GPUs, such as NV2 or PHB."""
    if one == other:
        return SELF
    count = intranode.nvlinks(one, other)
    return f"NV{count}" if count else intranode.path(one, other)


def adapter_link(position: GpuSlot, nic: DeviceLocation) -> str:
    """Return the cell of a GPU and an InfiniBand adapter."""
    node = NODES[position.card.node]
    return node.path(node.location(position.slot), nic)


def affinity(position: GpuSlot, cpus: int) -> tuple[str, str]:
    """Return the CPUs on a GPU's NUMA node, and the number of that node.

    Args:
        position: the position of the GPU in its node.
        cpus: the CPUs of the node; if it has fewer than NUMA nodes, they are near to all GPUs.
    """
    node = NODES[position.card.node]
    numa = node.location(position.slot).numa % node.numa_nodes
    first, end = numa * cpus // node.numa_nodes, (numa + 1) * cpus // node.numa_nodes
    if cpus < node.numa_nodes:
        first, end = 0, cpus
    return str(first) if end - first == 1 else f"{first}-{end - 1}", str(numa)


def modeled_notice(node: NodeType) -> str:
    return f"The GPUs are virtual, and the node is modeled: {node.title}.\n"

"""The texts that people know: the table, the list, the matrix of links."""

from __future__ import annotations

from datetime import datetime

from job_monitor.nvidia_smi.cards import Gpu
from slurmbox.profile import CPUS
from virtualgpu.net.network import PCIE, SHARED_MEMORY, within_node

MODELED = "virtual cards: modeled, no hardware"
NVLINK_RATE = 25e9  # bytes/s per direction of each NVLink of the V100, the A100 and the H100
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
  SYS  = Connection traversing PCIe as well as the host's memory
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  NV#  = Connection traversing a bonded set of # NVLinks

The cards are virtual, and these the links that are modeled.
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
    busy = [gpu for gpu in gpus if gpu.rank]
    lines += [f"|{gpu.index:5d}   N/A  N/A {gpu.rank.pid:9d}      C   {'python':<35}"
              f"{f'{gpu.used}MiB':>15} |" for gpu in busy]
    if not busy:
        lines.append(f"|{'  No running processes found':<{WIDTH}}|")
    return "\n".join([*lines, f"+{'-' * WIDTH}+"]) + "\n"


def listing(gpus: list[Gpu]) -> str:
    return "".join(f"GPU {gpu.index}: {gpu.product} (UUID: {gpu.uuid})\n" for gpu in gpus)


def matrix(gpus: list[Gpu]) -> str:
    """How the cards of one node reach each other, as they are modeled."""
    names = [f"GPU{gpu.index}" for gpu in gpus]
    lines = ["\t".join(["", *names, "CPU Affinity", "NUMA Affinity"])]
    for name, gpu in zip(names, gpus, strict=True):
        cells = [" X " if gpu is other else link(gpu, other) for other in gpus]
        lines.append("\t".join([name, *cells, f"0-{CPUS - 1}", "N/A"]))
    return "\n".join(lines) + "\n" + LEGEND


def link(one: Gpu, other: Gpu) -> str:
    kinds = {within_node(gpu.card).name for gpu in (one, other)}
    if SHARED_MEMORY in kinds:
        return "SYS"
    if PCIE in kinds:
        return "PHB"
    return f"NV{round(min(one.card.nvlink, other.card.nvlink) / NVLINK_RATE)}"

"""Parse the requested cluster: its nodes, GPUs, and links."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

from labcore.errors import LabError

MAX_NODES = 64
MAX_GPUS = 8
CPUS = 32  # of a node, by default; they are virtual, like its memory
MAX_CPUS = 256
MAX_MEMORY = 4096  # GiB of a node
PARTITION = "slurmpar"
UNLIMITED = "unlimited"
MODES = ("auto", "namespaces", "loopback")
CUDA, CUDA_NODE = "cuda", "slurmgpu1"  # type and partition of real GPUs; the node that has them
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
MIN_RATE, MAX_RATE = 10**6, 400 * 10**9  # bits per second


@dataclass(frozen=True)
class NodeSpec:
    """One node of a cluster: its name, and the type and number of its GPUs."""

    name: str
    gpu_type: str | None
    gpus: int

    @property
    def real(self) -> bool:
        """True if the node's GPUs are hardware."""
        return self.gpu_type == CUDA

    @property
    def card(self) -> str | None:
        """The name of the GPU model that the node's virtual GPUs have, or None."""
        from virtualgpu.core import cards

        return cards.find(self.gpu_type).name if self.gpus and not self.real else None

    @property
    def gres(self) -> str:
        return f"gpu:{self.gpu_type}:{self.gpus}" if self.gpus else ""


@dataclass(frozen=True)
class ClusterProfile:
    """The requested cluster.

    Attributes:
        nodes: its nodes.
        gpus: the value of --gpus.
        link: the rate of the links between nodes.
        accounting: whether slurmdbd runs.
        mode: one of MODES.
        cuda: the number of GPUs of a further node with real GPUs; 0 for no such node.
        cpus: the number of CPUs of a node.
        memory: the memory of a node in GiB; None for as much as its CPUs usually have.
        node_names: the names of its nodes.
    """

    nodes: tuple[NodeSpec, ...]
    gpus: str = "v100:2"
    link: str = UNLIMITED
    accounting: bool = False
    mode: str = "auto"
    cuda: int = 0
    cpus: int = CPUS
    memory: int | None = None
    node_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_names", tuple(node.name for node in self.nodes))

    @property
    def gpu_types(self) -> list[str]:
        """The types of virtual GPUs, in the order of the nodes."""
        return list(dict.fromkeys(n.gpu_type for n in self.nodes if n.gpu_type and not n.real))

    def partitions(self) -> dict[str, list[NodeSpec]]:
        """Return the nodes of each partition, the default one first.

        A mixed cluster has a further partition per type of GPU.
        """
        partitions = {PARTITION: [node for node in self.nodes if not node.real]}
        if len(self.gpu_types) > 1:
            for kind in self.gpu_types:
                partitions[kind] = [node for node in self.nodes if node.gpu_type == kind]
        if self.cuda:
            partitions[CUDA] = [node for node in self.nodes if node.real]
        return partitions

    def to_json(self) -> dict:
        return {key: value for key, value in asdict(self).items() if key not in
                ("node_names", "nodes")} | {"nodes": sum(not node.real for node in self.nodes)}


def make(nodes: int | None = None, gpus: str | None = None, link: str | None = None,
         accounting: bool = False, mode: str = "auto", cuda: int = 0, cpus: int = CPUS,
         memory: int | None = None) -> ClusterProfile:
    """Return the profile for command-line values, which are the attributes of ClusterProfile.

    Raises:
        LabError: a value is invalid; the message names the flag, the value, and the nearest one.
    """
    if mode not in MODES:
        raise LabError(f"--mode {mode!r}: not one of {', '.join(MODES)}")
    if not 0 <= cuda <= MAX_GPUS:
        raise LabError(f"--cuda {cuda}: not between 0 and {MAX_GPUS} GPUs; nearest: "
                       f"{min(max(cuda, 0), MAX_GPUS)}")
    for flag, value, most in (("--cpus", cpus, MAX_CPUS), ("--memory", memory, MAX_MEMORY)):
        if value is not None and not 1 <= value <= most:
            raise LabError(f"{flag} {value}: not between 1 and {most}; nearest: "
                           f"{min(max(value, 1), most)}")
    gpus = gpus or "v100:2"
    real = (NodeSpec(CUDA_NODE, CUDA, cuda),) if cuda else ()
    return ClusterProfile(nodes=parse_nodes(nodes, gpus) + real, gpus=gpus.lower(), cuda=cuda,
                          link=parse_link(link or UNLIMITED), accounting=accounting, mode=mode,
                          cpus=cpus, memory=memory)


def from_json(record: dict) -> ClusterProfile:
    return make(**record)


def parse_nodes(count: int | None, gpus: str) -> tuple[NodeSpec, ...]:
    """Return nodes slurmnode1, ... with their GPUs.

    Args:
        count: the number of nodes; None for the default.
        gpus: the GPUs of each node, one of
            v100:2                two V100 GPUs on every node
            a100:4,a10:4          four A100 GPUs on the first half of the nodes, A10 on the second
            3xa100:4,1xa10:4      the same with the number of nodes of each type
            none                  no GPUs

    Raises:
        LabError: the numbers do not match.
    """
    kinds = [_parse_kind(text) for text in gpus.lower().split(",")]
    given = [nodes for nodes, _, _ in kinds if nodes]
    if given and len(given) < len(kinds):
        raise LabError(f"--gpus {gpus!r}: give the number of nodes for each type or for none, "
                       "as in 3xa100:4,1xa10:4")
    if count is not None and not 1 <= count <= MAX_NODES:
        raise LabError(f"--nodes {count}: not between 1 and {MAX_NODES}; nearest: "
                       f"{min(max(count, 1), MAX_NODES)}")
    if given:
        total = sum(given)
        if count not in (None, total) or total > MAX_NODES:
            raise LabError(f"--gpus {gpus!r} describes {total} nodes (of at most {MAX_NODES}), but "
                           f"--nodes is {count}: leave --nodes out, or make them agree")
        shares = given
    else:
        total = count or max(2, len(kinds))
        if total % len(kinds):
            near = max(1, round(total / len(kinds))) * len(kinds)
            raise LabError(f"--nodes {total} cannot be split evenly over the {len(kinds)} types in "
                           f"--gpus {gpus!r}: use --nodes {near}, or give the number of each"
                           + _uneven_example(total, kinds))
        shares = [total // len(kinds)] * len(kinds)
    rows = [(kind, number) for share, (_, kind, number) in zip(shares, kinds, strict=True)
            for _ in range(share)]
    return tuple(NodeSpec(f"slurmnode{i}", kind, number)
                 for i, (kind, number) in enumerate(rows, 1))


def _uneven_example(total: int, kinds: list[tuple]) -> str:
    if total < len(kinds):
        return ""
    counts = [total - len(kinds) + 1] + [1] * (len(kinds) - 1)
    return ": " + ",".join(f"{count}x{kind}:{number}" for count, (_, kind, number)
                           in zip(counts, kinds, strict=True))


def _parse_kind(text: str) -> tuple[int | None, str | None, int]:
    """Parse `2xa100:4` into (2, "a100", 4). Raises LabError."""
    if text.strip() == "none":
        return None, None, 0
    match = re.fullmatch(r"\s*(?:(\d+)x)?([a-z][a-z0-9-]*):(\d+)\s*", text)
    if not match:
        raise LabError(f"--gpus {text!r}: not TYPE:NUMBER, for example v100:2 or a100:4,a10:4")
    nodes, kind, number = match[1] and int(match[1]), match[2], int(match[3])
    _check_type(text, kind)
    if not 1 <= number <= MAX_GPUS:
        raise LabError(f"--gpus {text!r}: not between 1 and {MAX_GPUS} GPUs per node; "
                       f"nearest: {kind}:{min(max(number, 1), MAX_GPUS)}")
    if nodes == 0:
        raise LabError(f"--gpus {text!r}: no node has these GPUs; leave it out, or use "
                       f"1x{kind}:{number}")
    return nodes, kind, number


def _check_type(text: str, kind: str) -> None:
    from virtualgpu.core import cards
    from virtualgpu.core.errors import UnknownCard

    try:
        cards.find(kind)
    except UnknownCard as error:
        raise LabError(f"--gpus {text!r}: {error} (lab devices lists them)") from error


def parse_link(text: str) -> str:
    """Return a rate in `tc`'s spelling, such as `25gbit` or `unlimited`. Raises LabError."""
    rate = text.strip().lower()
    if rate == UNLIMITED:
        return rate
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match:
        raise LabError(f"link rate {text!r}: not a number and a unit, such as 25gbit, 1gbit, "
                       "100mbit, or unlimited")
    bits = float(match[1]) * UNITS[match[2]]
    if not MIN_RATE <= bits <= MAX_RATE:
        nearest = "1mbit" if bits < MIN_RATE else "400gbit"
        raise LabError(f"link rate {text!r}: not between 1mbit and 400gbit; nearest: {nearest}")
    return rate


def bits_per_second(rate: str) -> int:
    """Return the bits per second of a rate that `parse_link` returned, other than `unlimited`."""
    return int(float(rate[:-4]) * UNITS[rate[-4:]])


def virtual_network(rate: str) -> str:
    """Return the network that virtual GPUs model for links of this rate; empty for `unlimited`."""
    if rate == UNLIMITED:
        return ""
    if rate.endswith("kbit"):
        rate = f"{float(rate[:-4]) / 1000:g}mbit"
    return f"ethernet:{rate}"

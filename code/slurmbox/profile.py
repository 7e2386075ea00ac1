"""The requested cluster (nodes, GPUs, and links), parsed from text."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

from labcore.errors import LabError

MAX_NODES = 64
MAX_GPUS = 8
CPUS = 32
PARTITION = "slurmpar"
UNLIMITED = "unlimited"
MODES = ("auto", "namespaces", "loopback")
CUDA, CUDA_NODE = "cuda", "slurmgpu1"  # the type of a GPU that is there, its partition; its node
UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
SLOWEST, FASTEST = 10**6, 400 * 10**9


@dataclass(frozen=True)
class Node:
    name: str
    gpu_type: str | None
    gpus: int

    @property
    def real(self) -> bool:
        """Whether the node's GPUs are hardware."""
        return self.gpu_type == CUDA

    @property
    def card(self) -> str | None:
        """The virtual card that this type of GPU is."""
        from virtualgpu.core import cards

        return cards.find(self.gpu_type).name if self.gpus and not self.real else None

    @property
    def gres(self) -> str:
        return f"gpu:{self.gpu_type}:{self.gpus}" if self.gpus else ""


@dataclass(frozen=True)
class Profile:
    nodes: tuple[Node, ...]
    gpus: str = "v100:2"
    link: str = UNLIMITED
    accounting: bool = False
    mode: str = "auto"
    cuda: int = 0  # GPUs of a further node that has real ones
    node_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_names", tuple(node.name for node in self.nodes))

    @property
    def gpu_types(self) -> list[str]:
        """The kinds of GPU, in the order of the nodes."""
        return list(dict.fromkeys(n.gpu_type for n in self.nodes if n.gpu_type and not n.real))

    def partitions(self) -> dict[str, list[Node]]:
        """The default partition holds every node; a mixed cluster has one more per kind of GPU."""
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
         accounting: bool = False, mode: str = "auto", cuda: int = 0) -> Profile:
    """A profile from what the user typed; raises LabError that names the value."""
    if mode not in MODES:
        raise LabError(f"--mode {mode!r}: one of {', '.join(MODES)}")
    if not 0 <= cuda <= MAX_GPUS:
        raise LabError(f"--cuda {cuda}: from 0 to {MAX_GPUS} GPUs; nearest: "
                       f"{min(max(cuda, 0), MAX_GPUS)}")
    gpus = gpus or "v100:2"
    real = (Node(CUDA_NODE, CUDA, cuda),) if cuda else ()
    return Profile(nodes=parse_nodes(nodes, gpus) + real, gpus=gpus.lower(), cuda=cuda,
                   link=parse_link(link or UNLIMITED), accounting=accounting, mode=mode)


def from_json(record: dict) -> Profile:
    return make(**record)


def parse_nodes(count: int | None, gpus: str) -> tuple[Node, ...]:
    """Nodes slurmnode1.. with the GPUs that `gpus` names, kind by kind in order.

    `v100:2`              two V100 on every node
    `a100:4,a10:4`        the first half of the nodes has four A100 each, the second half A10
    `3xa100:4,1xa10:4`    the same with the number of nodes of each kind given
    `none`                no GPU
    """
    kinds = [_parse_kind(text) for text in gpus.lower().split(",")]
    given = [nodes for nodes, _, _ in kinds if nodes]
    if given and len(given) < len(kinds):
        raise LabError(f"--gpus {gpus!r}: give the number of nodes for each kind or for none, "
                       "as in 3xa100:4,1xa10:4")
    if count is not None and not 1 <= count <= MAX_NODES:
        raise LabError(f"--nodes {count}: from 1 to {MAX_NODES}, the default is 2")
    if given:
        total = sum(given)
        if count not in (None, total) or total > MAX_NODES:
            raise LabError(f"--gpus {gpus!r} describes {total} nodes (of at most {MAX_NODES}), "
                           f"--nodes says {count}: leave --nodes out, or make them agree")
        shares = given
    else:
        total = count or max(2, len(kinds))
        if total % len(kinds):
            near = max(1, round(total / len(kinds))) * len(kinds)
            raise LabError(f"--nodes {total} cannot be split evenly over the {len(kinds)} kinds in "
                           f"--gpus {gpus!r}: --nodes {near}, or say how many of each"
                           + _uneven_example(total, kinds))
        shares = [total // len(kinds)] * len(kinds)
    rows = [(kind, number) for share, (_, kind, number) in zip(shares, kinds, strict=True)
            for _ in range(share)]
    return tuple(Node(f"slurmnode{i}", kind, number) for i, (kind, number) in enumerate(rows, 1))


def _uneven_example(total: int, kinds: list[tuple]) -> str:
    if total < len(kinds):
        return ""
    counts = [total - len(kinds) + 1] + [1] * (len(kinds) - 1)
    return ": " + ",".join(f"{count}x{kind}:{number}" for count, (_, kind, number)
                           in zip(counts, kinds, strict=True))


def _parse_kind(text: str) -> tuple[int | None, str | None, int]:
    """`2xa100:4` -> (2, "a100", 4)."""
    if text.strip() == "none":
        return None, None, 0
    match = re.fullmatch(r"\s*(?:(\d+)x)?([a-z][a-z0-9-]*):(\d+)\s*", text)
    if not match:
        raise LabError(f"--gpus {text!r}: not TYPE:NUMBER, for example v100:2 or a100:4,a10:4")
    nodes, kind, number = match[1] and int(match[1]), match[2], int(match[3])
    _check_type(text, kind)
    if not 1 <= number <= MAX_GPUS:
        raise LabError(f"--gpus {text!r}: from 1 to {MAX_GPUS} GPUs in a node, or none; "
                       f"nearest: {kind}:{min(max(number, 1), MAX_GPUS)}")
    if nodes == 0:
        raise LabError(f"--gpus {text!r}: no node has these; leave it out or say 1x{kind}:{number}")
    return nodes, kind, number


def _check_type(text: str, kind: str) -> None:
    from virtualgpu.core import cards
    from virtualgpu.core.errors import UnknownCard

    try:
        cards.find(kind)
    except UnknownCard as error:
        raise LabError(f"--gpus {text!r}: {error} (lab devices shows them)") from error


def parse_link(text: str) -> str:
    """A rate such as `25gbit`, in Slurm's neighbor `tc`'s spelling, or `unlimited`."""
    rate = text.strip().lower()
    if rate == UNLIMITED:
        return rate
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", rate)
    if not match:
        raise LabError(f"link rate {text!r}: a number and a unit, for example 25gbit, 1gbit, "
                       "100mbit, or unlimited")
    bits = float(match[1]) * UNITS[match[2]]
    if not SLOWEST <= bits <= FASTEST:
        nearest = "1mbit" if bits < SLOWEST else "400gbit"
        raise LabError(f"link rate {text!r}: from 1mbit to 400gbit; nearest: {nearest}")
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

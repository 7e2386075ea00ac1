"""Break down the step time of data-parallel training, for lab 04, and print a cluster's links.

A step's time is split into compute, bandwidth, and latency.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from unittest import mock

from labcore.colors import result
from virtualgpu.core import stacks
from virtualgpu.launch.cluster import parse
from virtualgpu.net import collectives
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.topology import Topology


def show_links(gpus: str, nodes: int, link: str | None = None) -> None:
    """Print the bandwidth and the latency of a virtual cluster's links.

    Args:
        gpus: the GPU model and the number per node, such as "h100:8".
        link: the network between nodes; None for the usual one of these GPUs.
    """
    topology = parse(gpus, nodes, link).topology()
    near, network = topology.path((0, 1)), topology.network
    adapters = f", {network.adapters} adapters per node" if network.adapters > 1 else ""
    print(f"{gpus.replace(':', ' x ')} per node, {nodes} nodes (modeled)")
    print(f"  between two GPUs of a node: {result(f'{near.bandwidth / 1e9:.0f} GB/s')}, "
          f"{1e6 * near.near:g} us per hop")
    print(f"  between two nodes: {result(f'{network.effective / 1e9:.1f} GB/s')} of a line rate of "
          f"{network.bandwidth / 1e9:g} GB/s{adapters}, {1e6 * network.latency:g} us per hop")
    print(f"  starting a collective: {1e6 * collectives.LAUNCH:g} us")


@contextlib.contextmanager
def no_latency() -> Iterator[None]:
    """Model collectives without the latency of links and of their start, within the context."""
    path = Topology.path

    def path_without_latency(self: Topology, ranks: Sequence[int]) -> CommunicationPath:
        return replace(path(self, ranks), near=0.0, far=0.0)

    # Virtual ranks fork from this process.
    with (mock.patch.object(Topology, "path", path_without_latency),
          mock.patch.object(collectives, "LAUNCH", 0.0)):
        if collectives.all_reduce(parse("v100:2", 2).topology().path(range(4)), 0):
            raise RuntimeError("the model of an all-reduce has a latency that is not removed here")
        yield


@dataclass(frozen=True)
class Split:
    """Breakdown of a step's time, in seconds.

    Attributes:
        ideal: the time of one GPU for the whole batch, divided by the number of GPUs.
        small: additional compute time because a GPU's part of the batch is small.
        bandwidth: exposed communication that would remain without latency.
        latency: the rest of the exposed communication.
    """

    ideal: float
    small: float = 0.0
    bandwidth: float = 0.0
    latency: float = 0.0

    @property
    def step(self) -> float:
        """The whole step."""
        return self.ideal + self.small + self.bandwidth + self.latency

    @property
    def efficiency(self) -> float:
        """The strong-scaling efficiency; 1.0 is ideal."""
        return self.ideal / self.step


def split(seconds_per_step: Callable[[int, int], float], alone: float, gpus: int, tokens: int
          ) -> Split:
    """Model a step as it is, without latency, and without communication, and split its time.

    Args:
        seconds_per_step: returns the step time for a number of GPUs and of tokens per GPU.
        alone: the step time of one GPU for the whole batch, in seconds.
        gpus: the number of GPUs.
        tokens: tokens per GPU.
    """
    step = seconds_per_step(gpus, tokens)
    with no_latency():
        bandwidth_only = seconds_per_step(gpus, tokens)
    compute = seconds_per_step(1, tokens)
    return Split(alone / gpus, compute - alone / gpus, bandwidth_only - compute,
                 step - bandwidth_only)


def show_splits(splits: dict[int, Split], gpus: str) -> None:
    """Print a table in milliseconds, with one row per number of GPUs.

    Args:
        splits: the split step time, by number of GPUs.
        gpus: the GPU model and the number per node, such as "h100:8".
    """
    card = parse(gpus).card
    print(f"virtual {card.name}, modeled; software stack {stacks.describe(card)}")
    print(f"{'GPUs':>5} {'step ms':>8} = {'ideal':>8} + {'small batch':>11} + {'bandwidth':>9} + "
          f"{'latency':>8}   efficiency")
    for gpus, split in splits.items():
        parts = [round(1000 * part, 1) + 0.0  # no -0.0
                 for part in (split.step, split.ideal, split.small, split.bandwidth, split.latency)]
        print("{:>5,} {:>8.1f} = {:>8.1f} + {:>11.1f} + {:>9.1f} + {:>8.1f}   ".format(
            gpus, *parts) + result(f"{split.efficiency:>10.0%}"))

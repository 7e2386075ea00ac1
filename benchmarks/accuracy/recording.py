"""Record a training program once, and price its steps with any GPU model.

A record does not depend on the GPU's rates, so one record can be priced again and again, in a
fraction of a second, while constants of a GPU model change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import virtualgpu
from virtualgpu.core import cards
from virtualgpu.launch.cluster import Cluster
from virtualgpu.replay import Record
from virtualgpu.replay.exchange import Exchange
from virtualgpu.replay.player import Player

UNLIMITED = 1 << 50  # bytes: whether a row fits is decided after extrapolating


class SteppedPlayer(Player):
    """A player that keeps the time of every `torch.cuda.synchronize`."""

    def __init__(self, record: Record, cluster: Cluster) -> None:
        """Prepare to price a record of rank 0.

        Args:
            record: the record.
            cluster: the GPUs.
        """
        roomy = replace(cluster, cards=tuple(replace(card, memory=UNLIMITED)
                                             for card in cluster.cards))
        super().__init__(record, roomy.topology(), Exchange([0]))
        self.moments_of_synchronize: list[float] = []

    def synchronize(self) -> None:
        super().synchronize()
        self.moments_of_synchronize.append(self.gpu.clock.host)

    HANDLERS: ClassVar[dict[str, Callable]] = {**Player.HANDLERS, "s": synchronize}


@dataclass(frozen=True)
class Steps:
    """Steps of a program, modeled.

    Attributes:
        seconds: of each step.
        allocated: bytes that tensors take at the peak.
        reserved: bytes that PyTorch has reserved at the peak.
    """

    seconds: tuple[float, ...]
    allocated: int
    reserved: int


def record_program(program: Callable[[], object], cluster: Cluster, cudnn: bool = False) -> str:
    """Return the record of rank 0, which stands for all ranks, as text.

    Args:
        program: what every rank runs.
        cluster: the GPUs; only the GPU's generation and the numbers of GPUs and nodes matter.
        cudnn: whether PyTorch may choose cuDNN's attention. It prefers that on Hopper since 2.5.

    Raises:
        SystemExit: the program failed or used operations without a cost rule.
    """
    card = cluster.card
    roomy = replace(card, name=f"{card.name}-unlimited", memory=UNLIMITED)
    cards.CARDS[roomy.name] = roomy

    def choose_and_run() -> object:
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        return program()

    try:
        (rank,) = virtualgpu.run(choose_and_run, f"{roomy.name}:{cluster.per_node}", cluster.nodes,
                                 present=[0], record=True)
    finally:
        del cards.CARDS[roomy.name]
    if rank.error or rank.unknown:
        raise SystemExit(f"{cluster}: {rank.error or rank.unknown}")
    return rank.record


def price_steps(record: Record, cluster: Cluster, steps: int) -> Steps:
    """Return the last steps of a recorded program that synchronizes before and after each.

    Args:
        record: rank 0's record.
        cluster: the GPUs.
        steps: how many steps the program synchronizes around at its end.
    """
    player = SteppedPlayer(record, cluster)
    while player.advance():
        pass
    player.finish()
    # The last one is destroy_process_group's.
    moments = player.moments_of_synchronize[-2 * steps - 1:-1]
    memory = player.gpu.memory
    return Steps(
        tuple(end - begin for begin, end in zip(moments[::2], moments[1::2], strict=True)),
        memory.peak, memory.peak_reserved)

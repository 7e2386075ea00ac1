"""Run a function on virtual GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from virtualgpu.core.stacks import DEFAULT
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.result import Rank
from virtualgpu.launch.settings import Settings, parse_size
from virtualgpu.pytorch import assumptions


def run(function: Callable[[], object], gpus: str = "h100", nodes: int = 1, *,
        link: str | None = None, stack: str = DEFAULT, present: Sequence[int] | None = None,
        values: str = "1MiB", assume: Iterable[str] = (), typical: float | None = None,
        record: bool = False) -> list[Rank]:
    """Run a function on every rank of a job on virtual GPUs.

    Args:
        function: what each rank runs, in a process forked from this one.
        gpus: the GPU model and how many each node has, such as "h100:8".
        link: the network between nodes, such as "infiniband:8x400gbit".
        stack: the software stack whose efficiency is modeled.
        present: the ranks that are processes; the others are symmetric to them. None for all ranks.
        values: size of the largest tensor whose values are computed, "all", or "none".
        assume: values for lines that need an unknown one, such as "train.py:41=False".
        typical: what a few numbers that large tensors yield, such as an amax or a norm, are assumed
            to be where the program reads them; None: they are unknown.
        record: whether each rank returns a record that virtualgpu.replay can price elsewhere.

    Returns:
        One Rank per process, with the function's value or its error.

    Raises:
        VirtualGpuError: an argument is invalid.
    """
    answers = tuple(map(assumptions.parse, assume))
    cluster = parse(gpus, nodes, link, stack)
    settings = Settings(parse_size(values), answers, record, typical=typical)
    return run_ranks(cluster, settings, function, present)

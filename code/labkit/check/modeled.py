"""`check.gpus`: run a driver on virtual GPUs. docs/writing-labs.md is the guide."""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any

from labkit.check.cases import require_none
from labkit.check.checks import Case, Failed, arguments_of, drive, passed, tally
from labkit.check.hints import explained
from labkit.check.on_gpus import MOST_PROCESSES
from labkit.check.sides import LATE, RETURNED, SimulatedCluster, current_side

if TYPE_CHECKING:
    from virtualgpu.replay import Priced

GIB = 2**30
SECONDS = 50.0  # time limit for one driver, in real time
MEMORY, LITTLE, EARLY = "memory", "little", "early"


@dataclass(frozen=True)
class ModeledCost:
    """The modeled cost of a driver.

    Attributes:
        cluster: the virtual GPUs that it ran on.
        ranks: the figures of each simulated rank (virtualgpu.replay.Priced).
    """

    cluster: SimulatedCluster
    ranks: tuple[Priced, ...]

    @property
    def slowest(self) -> Priced:
        """The rank that finishes last."""
        return max(self.ranks, key=lambda rank: rank.seconds)

    @property
    def milliseconds(self) -> float:
        """Modeled time until the last rank finishes."""
        return 1000 * self.slowest.seconds

    @property
    def exposed(self) -> float:
        """Fraction of that time in which the slowest rank's GPU only waited for communication."""
        return self.slowest.exposed_compute / self.slowest.seconds

    @property
    def peak_memory(self) -> float:
        """Peak allocated memory of the rank that needs the most, in GiB."""
        return max(rank.peak for rank in self.ranks) / GIB

    @property
    def error(self) -> float | None:
        """Expected error of modeled step times on these GPUs; None if nothing was compared."""
        from virtualgpu.core import accuracy

        return accuracy.expected_error([self.cluster.card])

    @property
    def reads(self) -> int:
        """How many times the host waited to read a value from the GPU, on the worst rank."""
        return max(rank.reads for rank in self.ranks)

    @property
    def memory_error(self) -> float | None:
        """Expected error of the peak memory: these are the bytes of the driver's own tensors.

        None if it was not measured on these GPUs.
        """
        from virtualgpu.core import accuracy

        return accuracy.allocated_error(self.cluster.card)

    def mfu(self, flops: float, dtype: str = "bf16") -> float:
        """Return the model FLOPs utilization (PaLM, appendix B).

        Args:
            flops: total FLOPs per GPU that the model needs.
            dtype: the dtype whose peak counts, such as "bf16" or "tf32".
        """
        from virtualgpu.core import cards

        card = cards.find(self.cluster.gpus.partition(":")[0])
        return flops / (self.slowest.seconds * card.tflops[dtype] * 1e12)


def gpus(driver: Any, case: Case = (), gpus: str = "h100:8", *, nodes: int = 1,
         link: str | None = None, present: Sequence[int] | None = None,
         least: Mapping[str, Any] | None = None, hints: Mapping[str, str] | None = None,
         seconds: float = SECONDS) -> ModeledCost:
    """Run a driver on virtual GPUs, and return its modeled cost.

    The default process group ("nccl") exists when the driver is called, and `torch.device("cuda")`
    is a virtual GPU: tensors have shapes, and small ones have values. The student's process returns
    a record of what it did, and the trusted side computes time and memory from that record.

    Args:
        driver: a function that uses the student's names; its return value is ignored.
        case: the driver's arguments: a dict of keywords, or a sequence of positional arguments.
        gpus: the GPU model and the number per node.
        link: the network between nodes, such as "ethernet:25gbit"; None: the GPU model's usual one.
        present: the ranks to simulate if all others do the same as one of these; None: all.
        least: lower bounds for every rank, because a record could leave something out: "flops",
            "bytes", "live", or "communicated". FLOPs count only in "dtype" ("fp32" by default) and
            in dtypes of higher precision, and communication only in groups of at least "among"
            ranks (2 by default). Derive the bounds from the task.
        hints: maps each text to what triggers it: "memory" (the driver runs out of memory) or
            "little" (it does less than `least`), or "early" (the default stream never waits for a
            communication).
        seconds: time limit in real time, after which the driver is killed.

    Raises Failed if the driver fails, sleeps, never waits for a communication, or does nothing on
    the GPUs or less than `least`.
    """
    cluster = _cluster(gpus, nodes, link, present)
    require_none(case, "check.gpus")
    what, done = drive(driver, case, f"on {nodes} x {gpus}", lambda arguments, keywords: (
        current_side().gpus(driver, cluster, arguments, keywords, seconds)))
    _require_work(what, done, least or {}, hints)
    from virtualgpu.core import accuracy

    cost = ModeledCost(cluster, done.priced)
    tally.note(driver)
    passed(f"{current_side().title(driver)}: {cost.milliseconds:.2f} ms "
           f"(modeled, {accuracy.margin(cost.error)}), "
           f"{100 * cost.exposed:.1f}% of it exposed communication, "
           f"{cost.peak_memory:.2f} GiB at the peak")
    return cost


def baseline(driver: Any, case: Case = (), gpus: str = "h100:8", *, nodes: int = 1,
             link: str | None = None, present: Sequence[int] | None = None) -> ModeledCost:
    """Return the modeled cost of the check's own driver, which no student's code is part of.

    A student's figure is held against such a baseline, and never against another of their own. It
    runs on the trusted side, once in a process; the arguments are those of `gpus`.

    Raises ValueError for a driver that uses a student's name, or that fails.
    """
    cluster = _cluster(gpus, nodes, link, present)
    if not isinstance(driver, FunctionType):
        raise ValueError(f"check.baseline: {driver!r} is no function of the check's own")
    arguments, keywords = arguments_of(case)
    key = marshal.dumps(driver.__code__), repr((arguments, keywords, cluster))
    if key not in _baselines:
        from labkit.check.kernel import KernelSide

        done = KernelSide().gpus(driver, cluster, arguments, keywords, SECONDS)
        if done.state != RETURNED:
            raise ValueError(f"check.baseline: {done.text}")
        _baselines[key] = ModeledCost(cluster, done.priced)
    return _baselines[key]


_baselines: dict[tuple[bytes, str], ModeledCost] = {}  # by code, and case with GPUs


def _cluster(gpus: str, nodes: int, link: str | None, present: Sequence[int] | None
             ) -> SimulatedCluster:
    """Return the virtual GPUs of a check. Raises ValueError if too many would be simulated."""
    cluster = SimulatedCluster(gpus, nodes, link, None if present is None else tuple(present))
    if not 1 <= len(cluster.ranks()) <= MOST_PROCESSES:
        raise ValueError(f"check.gpus: {len(cluster.ranks())} ranks would be simulated: give at "
                         f"most {MOST_PROCESSES} in `present`")
    return cluster


def _require_work(what: str, done: Any, least: Mapping[str, Any],
                  hints: Mapping[str, str] | None) -> None:
    """Raise Failed unless a driver returned and did at least `least` on the GPUs."""
    from virtualgpu.replay.bounds import TooLittle, require

    if done.state != RETURNED:
        kind = MEMORY if "OutOfMemoryError" in done.text else ""
        text = done.text if done.state == LATE else explained(done.text)
        raise Failed(f"{what}: {text}{_advice(hints, kind)}")
    if not any(rank.seconds for rank in done.priced):
        raise Failed(f"{what}: it does nothing on the GPUs: no kernel runs, and no rank "
                     f"communicates.{_advice(hints, LITTLE)}")
    if any(rank.slept for rank in done.priced):
        raise Failed(f"{what}: it sleeps for {max(rank.slept for rank in done.priced):g} s. Leave "
                     "out time.sleep: only work on the GPUs is measured here.")
    for rank in done.priced:
        if rank.unawaited:
            raise Failed(
                f"{what}: on rank {rank.rank}, the default stream never waits for "
                f"{rank.unawaited} of the collectives and receives, so whatever reads their "
                "results there may run too early. Call wait() on each handle while that stream is "
                "the current one, or let it wait for the stream that did "
                f"(torch.cuda.current_stream().wait_stream).{_advice(hints, EARLY)}")
    try:
        require(done.priced, **least)
    except TooLittle as error:
        raise Failed(f"{what}: {error}{_advice(hints, LITTLE)}") from None


def _advice(hints: Mapping[str, str] | None, kind: str) -> str:
    return "".join(f"\n{text}" for text, trigger in (hints or {}).items() if trigger == kind)

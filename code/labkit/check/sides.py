"""The interface between a check and the student's code, which runs in the same kernel or, during
grading, in a sandbox.

A check names what the student defined. In the kernel that name is the function itself; on the
trusted side it is a stand-in that only the side knows how to use. So everything that touches a
student's name goes through `current_side()`, and values cross as in labkit.check.wire on both.
"""

from __future__ import annotations

import contextlib
import linecache
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from virtualgpu.core.card import Card
    from virtualgpu.launch.cluster import Cluster
    from virtualgpu.replay import Priced
    from warmranks import CommunicationCall
    from warmranks.records import RankRecord

SEED_VARIABLE = "LAB_CHECK_SEED"
NOTEBOOK = "JPY_SESSION_NAME"  # the notebook's path, set by Jupyter's server
CHECK_FILE = "<check "  # how the name of what stands for a file of a check's code begins
# How a driver on ranks or virtual GPUs ends; LATE: it still runs at the time limit.
RETURNED, RAISED, DEADLOCK, LATE = "returned", "raised", "deadlock", "late"
MOST_LINES, MOST_CODE = 4, 120  # of an exception's trace; characters of one line
MOST_NAMES, LONGEST_NAME = 100, 100  # of an exception's classes; letters of a name


@dataclass(frozen=True)
class Raised:
    """An exception as a plain value: the names of its class and its bases, and its message.

    Attributes:
        trace: the student's own lines that led to it, the last one last.
    """

    names: tuple[str, ...]
    text: str
    trace: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.names[0]}: {self.text}" if self.text else self.names[0]


@dataclass(frozen=True)
class Trial:
    """The conditions under which a job script is recorded.

    Attributes:
        arguments: the script's own arguments, as after its name on sbatch's command line.
        finds: empty files, relative to the workspace, that exist before it starts.
        writes: empty files, relative to the workspace, that the programs it starts leave.
        ends: the exit code of the programs that it starts with torchrun or python; or the exit
            codes of those that have a word in their arguments, by word, while others succeed.
        submitted_from: the folder, relative to the workspace, in which sbatch is called.
        job_id: the ID that Slurm gives the job.
    """

    arguments: tuple[str, ...] = ()
    finds: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    ends: int | Mapping[str, int] = 0
    submitted_from: str = "."
    job_id: int = 1

    @property
    def exit_codes(self) -> list[tuple[str, int]]:
        """The words of `ends` and their exit codes; every argument contains the empty word."""
        return [("", self.ends)] if isinstance(self.ends, int) else list(self.ends.items())


DEFAULT_TRIAL = Trial()  # no arguments, and every program succeeds


@dataclass(frozen=True)
class RanksRun:
    """The outcome of a driver on its ranks, in one case.

    Attributes:
        state: RETURNED, RAISED, DEADLOCK, or LATE.
        text: the error for the student, with tracebacks.
        records: return value and communication of each rank; empty unless all ranks returned.
    """

    state: str
    text: str = ""
    records: tuple[RankRecord, ...] = ()

    @property
    def values(self) -> list[Any]:
        """The driver's return value on each rank."""
        return [record.value for record in self.records]

    def calls(self, rank: int, *ops: str) -> list[CommunicationCall]:
        """Return the calls of one rank, in the order in which they began.

        Args:
            rank: the rank that made the calls.
            *ops: the names of the calls to return, such as "send"; without any, all calls.
        """
        return [call for call in self.records[rank].calls if not ops or call.op in ops]

    def bytes(self, rank: int, *ops: str) -> int:
        """Return the total bytes that one rank passed to these calls.

        Args:
            rank: the rank that made the calls.
            *ops: the names of the calls to count, such as "send"; without any, all calls.
        """
        return sum(call.bytes for call in self.calls(rank, *ops))


@dataclass(frozen=True)
class GpusRun:
    """The outcome of a driver on virtual GPUs.

    Attributes:
        state: RETURNED, RAISED, or LATE.
        text: the error for the student.
        priced: the figures of each simulated rank; empty unless all of them returned.
    """

    state: str
    text: str = ""
    priced: tuple[Priced, ...] = ()


@dataclass(frozen=True)
class SimulatedCluster:
    """The virtual GPUs that a driver runs on.

    Attributes:
        gpus: the GPU model and the number per node, such as "h100:8".
        nodes: the number of nodes.
        link: the network between them; None: the GPU model's usual one.
        present: the ranks to simulate, which stand for all others; None: all.
    """

    gpus: str
    nodes: int = 1
    link: str | None = None
    present: tuple[int, ...] | None = None

    @property
    def card(self) -> Card:
        """The GPU model under its software stack. Raises VirtualGpuError for an unknown one."""
        return self._parsed().card

    def ranks(self) -> list[int]:
        """Return the simulated ranks. Raises VirtualGpuError for an unknown GPU model."""
        return list(range(self._parsed().world) if self.present is None else self.present)

    def _parsed(self) -> Cluster:
        from virtualgpu.launch import cluster

        return cluster.parse(self.gpus, self.nodes, self.link)


class Side(Protocol):
    """Access to the student's code. Methods return plain copies, or raise wire.CannotCross."""

    seed: str

    def value(self, name: Any) -> Any | Raised:
        """Return the value of a student's name, or what reading it raised."""

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
             ) -> Any | Raised:
        """Call a student's function (or a driver). Return its result, or what it raised."""

    def ranks(self, function: Any, ranks: int, arguments: Sequence[Any],
              keywords: Mapping[str, Any], seconds: float) -> RanksRun:
        """Call a student's function (or a driver) on ranks, each with copies of the arguments; end
        them after `seconds`."""

    def gpus(self, function: Any, cluster: SimulatedCluster, arguments: Sequence[Any],
             keywords: Mapping[str, Any], seconds: float) -> GpusRun:
        """Call a student's function (or a driver) on virtual GPUs, and compute the cost of what it
        did on the trusted side."""

    def title(self, function: Any) -> str:
        """Return the student's name for this function."""

    def script(self, path: str, trial: Trial = DEFAULT_TRIAL) -> dict[str, Any]:
        """Return what a job script would run: the result of labkit.check.record.record, which
        takes the same arguments. Raises LabError when it cannot be read."""

    def mask(self, names: Sequence[str]) -> None:
        """Make modules and names unavailable to the student's code."""

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the trainer's estimate, as JSON, for flags from labkit.check.allowed.

        Raises LabError with the trainer's message if it refuses them.
        """


def called(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any | Raised:
    """Return a student's function's result, or what it raised.

    Args:
        function: the function.
        arguments: its positional arguments.
        keywords: its keyword arguments.
    """
    try:
        return function(*arguments, **keywords)
    except (Exception, SystemExit) as error:  # exit() in an answer must not end the check
        return raised(error)


def title(function: Any) -> str:
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) and name else f"a {type(function).__name__}"


def raised(error: BaseException) -> Raised:
    """Return an exception as a plain value."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind is not object]
    names = [*names[:MOST_NAMES // 2], *names[MOST_NAMES // 2:][-MOST_NAMES // 2:]]
    names = [name if name.isidentifier() and len(name) <= LONGEST_NAME else "Exception"
             for name in names]  # type("a b", ...) can create such classes
    try:
        text = str(error)[:2000]
    except Exception as another:  # the student's own __str__
        text = f"(its text cannot be shown: {type(another).__name__})"
    return Raised(tuple(names), text, own_lines(error))


def check_file(name: str) -> str:
    """Return what stands for the file of a check's code in tracebacks."""
    return f"{CHECK_FILE}{name}>"


def is_check_file(file: str) -> bool:
    return file.startswith(CHECK_FILE)


def own_lines(error: BaseException) -> str:
    """Return the last lines of cells, and of files in the workspace, that led to an exception; or,
    if there are none, the line of the check's driver that raised it."""
    from labcore import workspace

    lines, drivers, home = [], [], str(workspace.home())
    for frame, number in traceback.walk_tb(error.__traceback__):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if is_check_file(file):
            where = "the check's driver"
        elif file.startswith(f"{home}/"):
            where = f"{file.removeprefix(home)[1:]}, line {number}"
        elif frame.f_globals.get("__name__") == "__main__":
            where = f"line {number} of the cell"
        else:
            continue
        code = linecache.getline(file, number).strip()
        (drivers if is_check_file(file) else lines).append(
            f"  {where}, in {name}: {code[:MOST_CODE]}" if code else f"  {where}, in {name}")
    return "\n".join(dict.fromkeys(lines[-MOST_LINES:] or drivers[-1:]))


_current: Side | None = None


def current_side() -> Side:
    """Return the side that checks use now: the kernel (labkit.check.kernel), unless a trusted
    process has set another one with checking_on."""
    if _current is None:
        raise RuntimeError("a check was used before `from labkit import check` chose a side")
    return _current


def use_by_default(kernel: Side) -> None:
    """Set the side of a process that has none yet."""
    global _current
    _current = _current or kernel


@contextlib.contextmanager
def checking_on(other: Side) -> Iterator[None]:
    """Make checks use another side inside a `with` block. For the trusted side."""
    global _current
    before, _current = _current, other
    try:
        yield
    finally:
        _current = before

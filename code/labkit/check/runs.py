"""Find the training runs that a job script starts: ranks, flags, and rendezvous problems."""

from __future__ import annotations

import contextlib
import io
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from labkit.check import binding
from labkit.check.launch_record import SETTINGS
from labkit.check.launches import MOST_TEXT, Launch
from labkit.check.torchrun import BadCommand, Torchrun
from minimegatron.arguments import Config
from minimegatron.arguments.parse import parse_command_line
from minimegatron.errors import UserError

TRAINER = "pretrain_gpt.py"
HARMLESS = re.compile("-[bBdEIOPqRsSuv]+|-[XW].+")  # flags of python
LOCAL = ("localhost", "127.0.0.1", "::1", "")


class RanksOnNode(NamedTuple):
    """The ranks that a training run has on one node: its component of the job, and how many."""

    component: int
    ranks: int


@dataclass(frozen=True)
class TrainingRun:
    """One training run: the ranks of one rendezvous."""

    nodes: int
    ranks_per_node: int  # of the first node; those of a heterogeneous job may differ
    flags: Config | None  # None where it is refused, or not pretrain_gpt.py's
    problems: tuple[str, ...]
    trainer: str  # its file, as the script names it
    arguments: tuple[str, ...]  # of the trainer
    settings: dict[str, str]  # the environment variables of SETTINGS that the script sets
    backend: str = ""  # of torchrun's rendezvous, such as "c10d"; "static" without one
    rdzv_id: str = ""  # of torchrun's rendezvous; "none" if its backend gets none
    port: str = ""  # at which the ranks rendezvous; "0" is any free one
    shutdown_timeout: int | None = None  # s from a signal to torchrun's SIGKILL, if it runs
    by_srun: bool = False  # else the script itself starts it, with all CPUs of the job's first node
    cpus_per_task: str = ""  # that srun requests: by --cpus-per-task or SRUN_CPUS_PER_TASK
    bound: int | None = None  # CPUs that taskset, numactl, or --cpu-bind leaves to a task, if any
    folder: str = ""  # in which it starts
    placement: tuple[RanksOnNode, ...] = ()  # in the order of node ranks; () if all nodes are alike

    @property
    def world_size(self) -> int:
        return sum(node.ranks for node in self.on_nodes)

    @property
    def size(self) -> str:
        """Return the nodes and the ranks on each, such as "2 x 4", or "1 x 4 + 2 x 2"."""
        alike = groupby(node.ranks for node in self.on_nodes)
        return " + ".join(f"{len(list(nodes))} x {ranks}" for ranks, nodes in alike)

    @property
    def on_nodes(self) -> tuple[RanksOnNode, ...]:
        """Return the nodes in the order of their node ranks, with the ranks on each."""
        return self.placement or (RanksOnNode(0, self.ranks_per_node),) * self.nodes

    def absolute(self, path: str) -> str:
        """Return a path that the program is given as an absolute one.

        Paths in the workspace begin with $LAB_HOME; relative ones begin in the run's folder.
        """
        if not path.startswith(("/", "$LAB_HOME/")):
            path = f"{self.folder}/{path}"
        return posixpath.normpath(path)


def together(launches: list[Launch]) -> list[list[Launch]]:
    """Group the launches that run at the same time.

    They belong to one srun, or to one background srun per node for a common rendezvous.
    """
    groups: list[list[Launch]] = []
    for step in sorted({launch.step for launch in launches}):
        started = [launch for launch in launches if launch.step == step]
        for group in [started] if step >= 0 else [[launch] for launch in started]:
            waiting = [before for before in groups
                       if step >= 0 and before[-1].step >= 0 and _awaits(before, group[0])]
            if waiting:
                waiting[0].extend(group)
            else:
                groups.append(group)
    return groups


def _awaits(group: list[Launch], other: Launch) -> bool:
    """Return whether a background group lacks nodes, and `other` joins its rendezvous."""
    waiting, joining = group[-1].torchrun, other.torchrun
    if isinstance(waiting, BadCommand) or isinstance(joining, BadCommand):
        return False
    return (group[-1].background and len(group) < waiting.nnodes
            and waiting.rendezvous == joining.rendezvous)


def runs_of(group: list[Launch], problems: list[str], trainer: str = TRAINER) -> list[TrainingRun]:
    """Return the training runs among the programs of one step, which start together.

    Args:
        group: the programs.
        problems: receives what would go wrong.
        trainer: the file name of the program that trains.
    """
    problems += [f"srun refuses this: {launch.arguments[0]}" for launch in group
                 if launch.program == "srun-refused"]
    runs: list[TrainingRun] = []
    by_torchrun = [launch for launch in group if launch.program == "torchrun"]
    if by_torchrun:
        torchruns = [launch.torchrun for launch in by_torchrun]
        refused = [str(one) for one in torchruns if isinstance(one, BadCommand)]
        if refused:
            problems.append(refused[0])
            return []
        if is_trainer(torchruns[0].program, trainer):
            runs.append(_torchrun_run(by_torchrun, torchruns, trainer))
    direct = [launch for launch in group if launch.program == "python"
              and is_trainer(launch.arguments, trainer)]
    return [*runs, _direct_run(direct, trainer)] if direct else runs


def is_trainer(words: Sequence[str], trainer: str = TRAINER) -> bool:
    return _trainer_at(words, trainer) is not None


def _trainer_at(words: Sequence[str], trainer: str) -> int | None:
    """Return the position of the trainer's file among python's arguments.

    It follows only flags with which python runs the file: not -V, -h, -c, or -m.
    """
    for position, word in enumerate(words):
        if word.rsplit("/", 1)[-1] == trainer and not word.startswith("-"):
            return position
        if not HARMLESS.fullmatch(word):
            return None
    return None


def _flags(words: Sequence[str], world_size: int, trainer: str) -> tuple[Config | None, list[str]]:
    at = _trainer_at(words, trainer)
    assert at is not None
    if trainer != TRAINER:
        return None, []
    if any(word.partition("=")[0] == "--plot" for word in words):
        # The parser would look for the figure's folder, and it reads this on the trusted side.
        return None, ["--plot belongs to --estimate, which trains nothing; leave it out"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # --help
            env = {"RANK": "0", "WORLD_SIZE": str(world_size)}
            return parse_command_line(words[at + 1:], env), []
    except UserError as error:
        return None, [str(error)[:MOST_TEXT]]
    except SystemExit:
        return None, [f"{TRAINER} only prints its help"]


def _torchrun_run(launches: list[Launch], torchruns: list[Torchrun], trainer: str) -> TrainingRun:
    first = torchruns[0]
    placement = _torchrun_placement(launches, torchruns)
    flags, problems = _flags(first.program, sum(node.ranks for node in placement), trainer)
    nodes = {launch.host for launch in launches}
    if len(launches) > len(nodes):
        problems.append(f"srun starts torchrun {len(launches)} times on {len(nodes)} node(s): "
                        f"start it once per node (`srun --ntasks={len(nodes)}`, or "
                        "`#SBATCH --ntasks-per-node=1`); torchrun itself starts the ranks")
    elif first.nnodes > len(launches):
        problems.append(f"torchrun has --nnodes {first.nnodes} but starts on {len(launches)} "
                        "node(s): the ranks would wait forever for the others; "
                        "use srun to start it on every node")
    elif first.nnodes < len(launches):
        problems.append(f"torchrun starts on {len(launches)} nodes, each with --nnodes "
                        f"{first.nnodes}: these are {len(launches)} separate training runs")
    problems += _rendezvous_problems(torchruns, launches)
    if any(one.program != first.program for one in torchruns):
        problems.append("the nodes start the trainer with different flags")
    return _run(placement, flags, problems, first.program, launches, trainer)


def _torchrun_placement(launches: list[Launch], torchruns: list[Torchrun]) -> list[RanksOnNode]:
    """Return the ranks of each node, in the order of the node ranks that torchrun uses."""
    first = torchruns[0]
    if first.nnodes != len(launches):  # a problem, so only the size counts
        return [RanksOnNode(launches[0].component, first.nproc_per_node)] * first.nnodes
    # A rendezvous that assigns the node ranks sorts the nodes by their names.
    order = sorted(zip(launches, torchruns, strict=True), key=lambda pair: (
        pair[0].host if first.assigns_ranks else "", pair[1].node_rank))
    return [RanksOnNode(launch.component, one.nproc_per_node) for launch, one in order]


def _rendezvous_problems(torchruns: list[Torchrun], launches: list[Launch]) -> list[str]:
    problems = []
    first, hosts = torchruns[0], [launch.host for launch in launches]
    sizes = {(launch.component, one.nproc_per_node)
             for launch, one in zip(launches, torchruns, strict=True)}
    if any(len(values) > 1 for values in ({one.rendezvous for one in torchruns},
                                          {one.nnodes for one in torchruns})) \
            or len(sizes) > len({component for component, _ in sizes}):
        problems.append("the nodes differ: --nnodes, --nproc_per_node, and the rendezvous address "
                        "must be the same on all of them")
    if not first.assigns_ranks and first.nnodes > 1 and \
            sorted(one.node_rank for one in torchruns) != list(range(len(torchruns))):
        ranks = ", ".join(str(one.node_rank) for one in torchruns)
        problems.append(f"the nodes have --node_rank {ranks}: each needs its own, which is "
                        "$SLURM_NODEID inside srun "
                        "(in single quotes, so that the script does not expand it)")
    firsts = [host for one, host in zip(torchruns, hosts, strict=True)
              if first.assigns_ranks or one.node_rank == 0]
    return problems + (_address_problems(first.rendezvous[0], firsts, hosts)
                       if first.nnodes > 1 else [])


def _address_problems(address: str, firsts: Sequence[str], hosts: Sequence[str]) -> list[str]:
    """Return the error in the rendezvous address of ranks on several hosts.

    The address must be one of `firsts`.
    """
    if len(set(hosts)) == 1 or not firsts or address.split(".")[0] in firsts:
        return []
    place = f"the rendezvous address is {address or 'missing'}"
    if address in LOCAL:
        return [f"{place}: every node resolves it to itself; use the first node of the job"]
    return [f"{place}, but rank 0 runs on {firsts[0]}: use the first node of the job, which "
            "`scontrol show hostnames` prints first"]


def _direct_run(launches: list[Launch], trainer: str) -> TrainingRun:
    """Return the run of ranks that srun starts without torchrun, through RANK and WORLD_SIZE."""
    worlds = {launch.variables.get("WORLD_SIZE", "1") for launch in launches}
    ranks = sorted(launch.variables.get("RANK", "0") for launch in launches)
    problems = []
    placement = [RanksOnNode(launches[0].component, 1)]
    if worlds != {str(len(launches))} or \
            ranks != sorted(str(rank) for rank in range(len(launches))):
        problems.append(f"{len(launches)} ranks start with WORLD_SIZE {', '.join(sorted(worlds))} "
                        f"and RANK {', '.join(ranks)}: these do not form a world; torchrun sets "
                        "both")
    else:
        placement = _direct_placement(launches)
        if len(launches) > 1:
            problems += _direct_rendezvous_problems(launches)
    if any(launch.arguments != launches[0].arguments for launch in launches):
        problems.append("the ranks start the trainer with different flags")
    flags, refused = _flags(launches[0].arguments, sum(node.ranks for node in placement), trainer)
    return _run(placement, flags, refused + problems, launches[0].arguments, launches, trainer)


def _direct_placement(launches: list[Launch]) -> list[RanksOnNode]:
    """Return the ranks of each node; RANK numbers them, and nodes follow their first ranks."""
    order = sorted(launches, key=lambda launch: int(launch.variables.get("RANK", "0")))
    ranks: dict[str, list[Launch]] = {}
    for launch in order:
        ranks.setdefault(launch.host, []).append(launch)
    return [RanksOnNode(here[0].component, len(here)) for here in ranks.values()]


def _run(placement: list[RanksOnNode], flags: Config | None, problems: list[str],
         words: Sequence[str], launches: list[Launch], trainer: str) -> TrainingRun:
    """Return the Run that `words` start; `launches` are its programs on all nodes."""
    at = _trainer_at(words, trainer)
    assert at is not None
    settings = {name: value for launch in launches for name, value in launch.variables.items()
                if name in SETTINGS}
    torchrun = launches[0].torchrun if launches[0].program == "torchrun" else None
    rendezvous = (torchrun.backend, torchrun.rdzv_id, torchrun.port, torchrun.shutdown_timeout
                  ) if isinstance(torchrun, Torchrun) else (
        "", "", launches[0].variables.get("MASTER_PORT", ""), None)
    return TrainingRun(len(placement), placement[0].ranks, flags, tuple(problems), words[at],
                       tuple(words[at + 1:]), settings,
                       *rendezvous, by_srun=launches[0].step >= 0,
                       bound=min(_bound(launches), default=None), folder=launches[0].folder,
                       placement=tuple(placement))


def _bound(launches: list[Launch]) -> list[int]:
    """Return how many CPUs are left to each launch that taskset, numactl, or srun binds."""
    counts = []
    for launch in launches:
        with contextlib.suppress(KeyError, ValueError):  # not bound, or the script's own variable
            counts.append(binding.bits(launch.variables[binding.MASK]))
    return counts


def _direct_rendezvous_problems(launches: list[Launch]) -> list[str]:
    """Return the error in MASTER_ADDR and MASTER_PORT, which only the script sets."""
    addresses = {(launch.variables.get("MASTER_ADDR", ""), launch.variables.get("MASTER_PORT", ""))
                 for launch in launches}
    address, port = min(addresses)
    if len(addresses) > 1 or not address or not port.isdigit():
        return [f"MASTER_ADDR is {address or 'not set'} and MASTER_PORT {port or 'not set'}: "
                "without torchrun, every rank needs the same values of both; export them"]
    firsts = [launch.host for launch in launches if launch.variables.get("RANK", "0") == "0"]
    return _address_problems(address, firsts, [launch.host for launch in launches])

"""Find the training runs among the programs that a job script starts: their ranks, their flags,
and anything that would make the rendezvous fail."""

from __future__ import annotations

import contextlib
import io
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.check import binding
from labkit.check.launches import MOST_TEXT, Launch
from labkit.check.noting import SETTINGS
from labkit.check.torchrun import BadCommand, Torchrun
from minimegatron.arguments import Config, parse_arguments
from minimegatron.errors import UserError

TRAINER = "pretrain_gpt.py"
HARMLESS = re.compile("-[bBdEIOPqRsSuv]+|-[XW].+")  # flags of python
LOCAL = ("localhost", "127.0.0.1", "::1", "")


@dataclass(frozen=True)
class TrainingRun:
    """One training run: the ranks of one rendezvous."""

    nodes: int
    ranks_per_node: int
    flags: Config | None  # None where it is refused, or not pretrain_gpt.py's
    problems: tuple[str, ...]
    trainer: str  # its file, as the script names it
    arguments: tuple[str, ...]  # of the trainer
    settings: dict[str, str]  # the environment variables of SETTINGS that the script sets
    backend: str = ""  # of torchrun's rendezvous, such as "c10d"; "static" without one
    rdzv_id: str = ""  # of torchrun's rendezvous; "none" if its backend gets none
    by_srun: bool = False  # else the script itself starts it, with all CPUs of the job's first node
    cpus_per_task: str = ""  # that srun requests: by --cpus-per-task or SRUN_CPUS_PER_TASK
    bound: int | None = None  # CPUs that taskset, numactl, or --cpu-bind leaves to a task, if any
    folder: str = ""  # in which it starts

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node

    def absolute(self, path: str) -> str:
        """Return a path that the program is given as an absolute one.

        Paths in the workspace begin with $LAB_HOME; relative ones begin in the run's folder.
        """
        if not path.startswith(("/", "$LAB_HOME/")):
            path = f"{self.folder}/{path}"
        return posixpath.normpath(path)


def together(launches: list[Launch]) -> list[list[Launch]]:
    """Group the launches that run at the same time.

    These are the launches of one srun, and torchruns that one srun per node starts in the
    background (`srun -w NODE torchrun ... &`) for a common rendezvous.
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
            return parse_arguments(words[at + 1:], {"RANK": "0", "WORLD_SIZE": str(world_size)}), []
    except UserError as error:
        return None, [str(error)[:MOST_TEXT]]
    except SystemExit:
        return None, [f"{TRAINER} only prints its help"]


def _torchrun_run(launches: list[Launch], torchruns: list[Torchrun], trainer: str) -> TrainingRun:
    first = torchruns[0]
    flags, problems = _flags(first.program, first.nnodes * first.nproc_per_node, trainer)
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
    problems += _rendezvous_problems(torchruns, [launch.host for launch in launches])
    if any(one.program != first.program for one in torchruns):
        problems.append("the nodes start the trainer with different flags")
    return _run(first.nnodes, first.nproc_per_node, flags, problems, first.program, launches,
                trainer)


def _rendezvous_problems(torchruns: list[Torchrun], hosts: list[str]) -> list[str]:
    problems = []
    first = torchruns[0]
    if any(len(values) > 1 for values in ({one.rendezvous for one in torchruns},
                                          {one.nnodes for one in torchruns},
                                          {one.nproc_per_node for one in torchruns})):
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
    hosts = [launch.host for launch in launches]
    nodes = len(set(hosts))
    per_node = -(-len(launches) // nodes)
    problems = []
    if worlds != {str(len(launches))} or \
            ranks != sorted(str(rank) for rank in range(len(launches))):
        problems.append(f"{len(launches)} ranks start with WORLD_SIZE {', '.join(sorted(worlds))} "
                        f"and RANK {', '.join(ranks)}: these do not form a world; torchrun sets "
                        "both")
        nodes = per_node = 1
    elif len(launches) > 1:
        problems += _direct_rendezvous_problems(launches, hosts)
    if any(launch.arguments != launches[0].arguments for launch in launches):
        problems.append("the ranks start the trainer with different flags")
    flags, refused = _flags(launches[0].arguments, nodes * per_node, trainer)
    return _run(nodes, per_node, flags, refused + problems, launches[0].arguments, launches,
                trainer)


def _run(nodes: int, per_node: int, flags: Config | None, problems: list[str],
         words: Sequence[str], launches: list[Launch], trainer: str) -> TrainingRun:
    """Return the Run that `words` start; `launches` are its programs on all nodes."""
    at = _trainer_at(words, trainer)
    assert at is not None
    settings = {name: value for launch in launches for name, value in launch.variables.items()
                if name in SETTINGS}
    torchrun = launches[0].torchrun if launches[0].program == "torchrun" else None
    backend, rdzv_id = (torchrun.backend, torchrun.rdzv_id) if isinstance(torchrun,
                                                                          Torchrun) else ("", "")
    return TrainingRun(nodes, per_node, flags, tuple(problems), words[at], tuple(words[at + 1:]),
                       settings,
                       backend, rdzv_id, by_srun=launches[0].step >= 0,
                       bound=min(_bound(launches), default=None), folder=launches[0].folder)


def _bound(launches: list[Launch]) -> list[int]:
    """Return how many CPUs are left to each launch that taskset, numactl, or srun binds."""
    counts = []
    for launch in launches:
        with contextlib.suppress(KeyError, ValueError):  # not bound, or the script's own variable
            counts.append(binding.bits(launch.variables[binding.MASK]))
    return counts


def _direct_rendezvous_problems(launches: list[Launch], hosts: list[str]) -> list[str]:
    """Return the error in MASTER_ADDR and MASTER_PORT, which only the script sets."""
    addresses = {(launch.variables.get("MASTER_ADDR", ""), launch.variables.get("MASTER_PORT", ""))
                 for launch in launches}
    address, port = min(addresses)
    if len(addresses) > 1 or not address or not port.isdigit():
        return [f"MASTER_ADDR is {address or 'not set'} and MASTER_PORT {port or 'not set'}: "
                "without torchrun, every rank needs the same values of both; export them"]
    firsts = [launch.host for launch in launches if launch.variables.get("RANK", "0") == "0"]
    return _address_problems(address, firsts, hosts)

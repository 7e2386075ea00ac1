"""The files of a checkpoint, and the layout that wrote them.

Every file holds the arguments of its run, so any of them tells the layout, and thereby which files
there are and which of them holds a parameter. Files are loaded as data, never as code
(`weights_only=True`), and memory-mapped: a rank reads no more of them than it copies.
"""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch

from minimegatron.errors import UserError

SHARD = "model_optim_rng.pt"
# What may differ between the run that saved and the one that loads.
LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "layers_per_chunk",
          "padded_vocab_size")


def replica_file(replica: int) -> str:
    """Return the name of the file with the optimizer state that a replica owns."""
    return f"distrib_optim_{replica:03d}.pt"


def shard_path(tp: int, stage: int, stages: int) -> Path:
    """Return the path, inside an iteration's folder, of one rank's file.

    Args:
        tp: its tensor-parallel rank.
        stage: its pipeline stage.
    """
    suffix = f"_{stage:03d}" if stages > 1 else ""
    return Path(f"mp_rank_{tp:02d}{suffix}") / SHARD


@dataclass(frozen=True)
class Layout:
    """How the ranks of one replica partition the model.

    Attributes:
        tp: tensor-parallel ranks.
        pp: pipeline stages.
        layers: number of layers of every virtual stage, in the order of the model.
        rows: rows of the word embedding, with padding.
    """

    tp: int
    pp: int
    layers: tuple[int, ...]
    rows: int

    @classmethod
    def of(cls, args: Mapping) -> Layout:
        """Return the layout of a run with these arguments."""
        return cls(*(args[name] for name in LAYOUT))

    def __str__(self) -> str:
        return (f"tensor-parallel size {self.tp}, {self.pp} stage(s) of "
                f"{'-'.join(map(str, self.layers))} layers")

    @property
    def is_interleaved(self) -> bool:
        """Return whether a stage holds several chunks."""
        return len(self.layers) > self.pp

    def paths(self) -> list[Path]:
        """Return the paths of all ranks' files inside an iteration's folder."""
        return [shard_path(tp, stage, self.pp) for stage in range(self.pp) for tp in range(self.tp)]

    def virtual_stage(self, name: str) -> int:
        """Return the virtual stage that holds a parameter; of a tied embedding, the first one."""
        if name.startswith("embedding."):
            return 0
        if name.startswith("decoder.layers."):
            return bisect_right([*accumulate(self.layers)], int(name.split(".")[2]))
        return len(self.layers) - 1  # the final norm and the output layer


class DividedState(Mapping):
    """A kind of optimizer state, by parameter, that replicas own parts of.

    A tensor is put together when it is looked up, so that only few are in memory.
    """

    def __init__(self, shapes: dict[str, list[int]],
                 owned: Iterable[tuple[str, int, torch.Tensor]]) -> None:
        """Args:
            shapes: of the parameters.
            owned: parameters, each with the first element and the values of a part of it.
        """
        self.shapes, self.parts = shapes, {name: [] for name in shapes}
        for name, first, values in owned:
            self.parts[name].append((first, values))

    def __getitem__(self, name: str) -> torch.Tensor:
        parts = sorted(self.parts[name], key=lambda part: part[0])
        return torch.cat([values for _, values in parts]).view(self.shapes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class SavedFiles:
    """The files of one checkpoint, each of which is opened when it is first needed.

    Attributes:
        folder: the iteration's folder.
        first: the content of its first file.
        first_path: the path of that file.
        layout: the layout that wrote the checkpoint; None until `check_names`.
    """

    def __init__(self, folder: Path, with_optimizer: bool) -> None:
        """Open the first file. Raises UserError if there is none, or if it is something else.

        Args:
            folder: the iteration's folder.
            with_optimizer: whether the sharded optimizer's files are needed, too.
        """
        self.folder, self.with_optimizer = folder, with_optimizer
        found = sorted(folder.glob(f"mp_rank_*/{SHARD}"))
        if not found:
            raise UserError(f"{folder} holds no mp_rank_*/{SHARD}")
        self.first_path, self.layout = found[0], None
        self.first = read_state(self.first_path)
        self._opened: dict[Path, dict] = {}

    def check_names(self) -> None:
        """Raise UserError unless the folder holds exactly the files of the first one's layout."""
        self.layout = Layout.of(self.first["args"])
        expected = {str(path) for path in self.layout.paths()}
        found = {str(path.relative_to(self.folder)) for path in self.folder.glob(f"*/{SHARD}")}
        written = (f"{self.first_path.relative_to(self.folder)} was saved with "
                   f"--tensor-model-parallel-size {self.layout.tp} "
                   f"--pipeline-model-parallel-size {self.layout.pp}")
        for name in sorted(expected - found):
            raise UserError(f"{self.folder}: there is no {name}, but {written}; restore the file, "
                            "or load another checkpoint")
        for name in sorted(found - expected):
            raise UserError(f"{self.folder} mixes files of two layouts: it holds {name}, but "
                            f"{written}; remove the files of one layout")

    def state(self, tp: int, stage: int) -> dict:
        """Return the content of one rank's files.

        Raises UserError if one is damaged, or belongs to another checkpoint than the first file.
        """
        path = self.folder / shard_path(tp, stage, self.layout.pp)
        if path not in self._opened:
            state = self.first if path == self.first_path else read_state(path)
            for what, mine, other in (("layout", Layout.of(state["args"]), self.layout),
                                      ("iteration", state["iteration"], self.first["iteration"])):
                if mine != other:
                    raise UserError(f"{path} and {self.first_path} are of different checkpoints: "
                                    f"{what} {mine} and {other}; restore the files of one of them")
            if self.with_optimizer and "optimizer" in state and state["args"].get(
                    "use_distributed_optimizer"):
                state["optimizer"] |= self._divided(path)
            self._opened[path] = state
        return self._opened[path]

    def _divided(self, path: Path) -> dict[str, DividedState]:
        """Return the optimizer state that the replicas of one rank divide, by kind."""
        first = read_file(path.with_name(replica_file(0)))
        files = [first, *(read_file(path.with_name(replica_file(replica)))
                          for replica in range(1, first["replicas"]))]
        expected = self.first["iteration"], len(files)
        for replica, file in enumerate(files):
            found = file["iteration"], file["replicas"]
            if found != expected:
                raise UserError(f"{path.with_name(replica_file(replica))} and {self.first_path} "
                                f"are of different checkpoints: iteration and replicas {found} and "
                                f"{expected}; restore the files of one of them")
        return {kind: DividedState(first["shapes"], [part for file in files
                                                     for part in file["owned"][kind]])
                for kind in first["owned"]}

    def model(self, tp: int, virtual_stage: int) -> dict[str, torch.Tensor]:
        """Return what one rank saved of the chunk that is this virtual stage."""
        stage, chunk = virtual_stage % self.layout.pp, virtual_stage // self.layout.pp
        return self.state(tp, stage)[f"model{chunk}" if self.layout.is_interleaved else "model"]

    def tensor(self, tp: int, name: str, kind: str | None, shape: list[int]) -> torch.Tensor:
        """Return one rank's partition of a parameter, or of one of its optimizer states.

        Args:
            tp: the tensor-parallel rank.
            name: the parameter's, inside its chunk.
            kind: the optimizer state's; None for the parameter.
            shape: the partition's.

        Raises UserError if the file lacks it, or has it in another shape.
        """
        virtual = self.layout.virtual_stage(name)
        stage, chunk = virtual % self.layout.pp, virtual // self.layout.pp
        tensors, key = self.model(tp, virtual), name
        if kind is not None:
            tensors = self.state(tp, stage)["optimizer"][kind]
            key = f"{chunk}.{name}" if self.layout.is_interleaved else name
        found = tensors.get(key)
        if kind is not None and found is None:
            raise frozen_when_saved(name)
        if found is None or list(found.shape) != shape:
            has = "no such tensor" if found is None else list(found.shape)
            raise UserError(f"{self.folder / shard_path(tp, stage, self.layout.pp)}: "
                            f"{kind or 'parameter'} {key} should be {shape} in this layout, but "
                            f"the file has {has}; it belongs to another model or layout")
        return found


def frozen_when_saved(name: str) -> UserError:
    """Return the error for a trained parameter whose optimizer state a checkpoint lacks."""
    return UserError(f"{name}: the checkpoint has no optimizer state for it, because it was frozen "
                     "when it was saved; add --no-load-optim, which restarts Adam and the "
                     "learning-rate schedule, or freeze it again")


def read_state(path: Path) -> dict:
    """Return the content of a rank's file. Raises UserError if it is not this trainer's."""
    state = read_file(path)
    missing = {"args", "iteration", "checkpoint_version"} - set(state)
    if not any(name.startswith("model") for name in state):
        missing.add("model")
    if missing:
        raise UserError(f"{path} is not a checkpoint of this trainer: it has no "
                        f"{', '.join(sorted(missing))}")
    return state


def read_file(path: Path) -> dict:
    """Load a file as data, never as code. Raises UserError."""
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
            ValueError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().split("\n")[0]

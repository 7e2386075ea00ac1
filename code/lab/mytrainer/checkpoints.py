"""Checkpoints of my_trainer.py: every rank writes its shards, and any number of ranks reads them.

    DIR/iter_0000010/rank_000.bin    fp32: this rank's shards of all units, of the master weights,
                                     then of exp_avg, and then of exp_avg_sq
                    /layout.json     units, names, shapes, ranks, progress, and checksums
    DIR/latest                       the folder's name, written last

A process may be killed at any moment. So a folder is written under another name, synced, and
renamed, and only then does `latest` name it; no complete folder is ever replaced. Your ShardLayout
and `reshard` of lab 08 know where each element is, so another number of ranks or another sharding
strategy can resume. Without sharding, rank 0 writes the shards of a layout with one rank.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import pieces
from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting, spelled
from minimegatron.context import Context
from minimegatron.data.atomic import atomic_file, sync_folder
from minimegatron.errors import UserError
from minimegatron.report import log_lines
from virtualgpu.core.storages import active_card

KINDS = ("masters", "exp_avg", "exp_avg_sq")  # of the sections of a rank's file, in this order
LATEST, LAYOUT, UNFINISHED = "latest", "layout.json", ".unfinished_"
# Flags with which a checkpoint must be resumed as it was saved.
MUST_MATCH = (*names_affecting(STATE, Config), "global_batch_size")
# What generating text needs besides, and a run may change.
FOR_TEXT = ("layernorm_epsilon", "vocab_file", "merge_file", "tokenizer_model")

Units = list[tuple[list[str], object]]  # names of parameters, and their ShardLayout
Read = Callable[[int, int, int, int], torch.Tensor]


def on_virtual_gpu() -> bool:
    """Return whether this process's CUDA device is a virtual GPU."""
    try:
        active_card()
    except RuntimeError:
        return False
    return True


class DamagedError(UserError):
    """Raised if a file of a checkpoint is not what was saved."""


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        iteration: steps, including skipped ones.
        skipped: the numbers of the steps that overflowed.
    """

    iteration: int = 0
    skipped: list[int] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """The number of steps that updated the parameters."""
        return self.iteration - len(self.skipped)


class Checkpoints:
    """Saves to --save, and loads from --load; every rank must make every call."""

    must_match = MUST_MATCH

    def __init__(self, ctx: Context, gpt: nn.Module, model: nn.Module,
                 masters: Sequence[torch.Tensor], adam: torch.optim.Optimizer) -> None:
        """Args:
            ctx: this rank.
            gpt: the module, whose names identify parameters.
            model: gpt in DataParallel or in a class of lab 08.
            masters: the fp32 master weights of model.parameters(), in the same order.
            adam: the optimizer over them.

        Raises UserError on virtual GPUs, whose tensors have no values.
        """
        config = ctx.config
        if on_virtual_gpu():
            name, folder = (("--save", config.save) if config.save else ("--load", config.load))
            raise UserError(f"{name} {folder}: tensors on virtual GPUs have no values; leave the "
                            "flag out")
        self.ctx, self.model, self.adam = ctx, model, adam
        named = self._named(gpt)
        self.parameters = dict(zip(named, model.parameters(), strict=True))
        self.masters = dict(zip(named, masters, strict=True))
        self.sharded = config.zero_stage > 0
        self._arrange(named)

    def _named(self, gpt: nn.Module) -> dict[str, nn.Parameter]:
        """Return this rank's parameters by the names that a checkpoint has for them."""
        return dict(gpt.named_parameters())

    def _arrange(self, named: dict[str, nn.Parameter]) -> None:
        """Decide what this rank writes and reads: `units` of the layout, and tensors' `shapes`."""
        names = {parameter: name for name, parameter in named.items()}
        if self.sharded:
            self.rank, self.ranks = self.ctx.grid.rank, self.ctx.grid.world_size
            self.units: Units = [([names[one] for one in unit.parameters], unit.layout)
                                 for unit in self.model.units]
        else:
            self.rank, self.ranks = 0, 1
            layout = pieces.load("shards").ShardLayout
            self.units = [([name], layout([one.shape], 1)) for name, one in named.items()]
        self.shapes = {name: list(one.shape) for name, one in named.items()}

    def save(self, progress: Progress) -> None:
        """Write a checkpoint. Raises UserError on all ranks if one of them cannot write."""
        ctx, root = self.ctx, Path(self.ctx.config.save)
        log_lines.print_saving(ctx, root, progress.iteration)
        folder = root / f"{UNFINISHED}iter_{progress.iteration:07d}"
        if ctx.grid.rank == 0:
            for leftover in root.glob(f"{UNFINISHED}*"):
                shutil.rmtree(leftover, ignore_errors=True)
        dist.barrier()
        self._collect()
        sums, error = None, None
        if ctx.grid.rank < self.ranks:
            try:
                sums = self._write(folder / rank_file(self.rank))
            except OSError as failed:
                error = f"--save {root}: {failed}; earlier checkpoints are intact"
        sums = [one for one in agree(error, sums) if one is not None]
        if ctx.grid.rank == 0:
            try:
                publish(folder, self._layout(progress, sums))
            except OSError as failed:
                error = f"--save {root}: {failed}; earlier checkpoints are intact"
        agree(error)
        log_lines.print_saved(ctx, root, progress.iteration)

    def _collect(self) -> None:
        """Prepare what _shard returns; here, every rank has its own shards already."""

    def _write(self, path: Path) -> list[list[int]]:
        """Write this rank's file. Return the CRC-32 of each kind's shard of each unit."""
        path.parent.mkdir(parents=True, exist_ok=True)
        sums = []
        with open(path, "wb") as file:
            for kind in KINDS:
                sums.append([])
                for names, layout in self.units:
                    content = self._shard(kind, names, layout).numpy().tobytes()
                    sums[-1].append(zlib.crc32(content))
                    file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return sums

    def _shard(self, kind: str, names: list[str], layout: object) -> torch.Tensor:
        """Return this rank's shard of a unit, fp32 [shard_size], on the host."""
        shard = torch.zeros(layout.shard_size, device=self.ctx.device.torch_device)
        for name, part in zip(names, layout.parts(self.rank), strict=True):
            master = self.masters[name]
            value = master if kind == "masters" else self.adam.state[master].get(kind)
            if value is not None:  # there are no moments before the first update
                shard[part] = value.detach().flatten()
        return shard.cpu()

    def _layout(self, progress: Progress, sums: list[list[list[int]]]) -> dict:
        """Return the content of LAYOUT, given the checksums of all files."""
        config = self.ctx.config
        return {"iteration": progress.iteration, "skipped": progress.skipped, "ranks": self.ranks,
                "text": {name: getattr(config, name) for name in FOR_TEXT},
                "flags": {name: getattr(config, name) for name in self.must_match},
                "units": [names for names, _ in self.units], "shapes": self.shapes, "crc32": sums}

    def load(self) -> Progress:
        """Load the latest checkpoint, or start at iteration 0 if there is none.

        Raises UserError on all ranks if a file is damaged, belongs to another model, or is not on
        all nodes.
        """
        ctx, root = self.ctx, Path(self.ctx.config.load)
        error, folder, progress = None, None, Progress()
        try:
            folder = latest(root)
            if folder is None:
                log_lines.print_no_checkpoint(ctx, root / LATEST)
            else:
                progress = self._read(folder)
        except DamagedError as failed:
            error = f"--load {root}: {failed}{others(root)}"
        except UserError as failed:
            error = f"--load {root}: {failed}"
        names = agree(error, folder and folder.name)
        if len(set(names)) > 1:
            raise UserError(f"--load {root}: the ranks find different checkpoints ({names}); use a "
                            "folder that all nodes share")
        if self.sharded:
            self._gather()
        if folder is not None:
            log_lines.print_loaded(ctx, root, progress.iteration)
        return progress

    def _gather(self) -> None:
        """Fill the units' buffers with the parameters that the ranks have read."""
        for unit in self.model.units:
            if unit.buffer.untyped_storage().size():  # not freed until its block runs
                unit.gather()

    def _read(self, folder: Path) -> Progress:
        """Read this rank's shards from a folder. Raises UserError."""
        saved = read_layout(folder)
        self._require_same(saved, folder / LAYOUT)
        layout = pieces.load("shards").ShardLayout
        old = [(names, layout([torch.Size(saved["shapes"][name]) for name in names],
                              saved["ranks"])) for names in saved["units"]]
        files = ShardFiles(folder, old, saved["crc32"])
        progress = Progress(saved["iteration"], saved["skipped"])
        for kind in KINDS if progress.updates else KINDS[:1]:
            self._restore(kind, self._shards(files.reader(kind), old), progress.updates)
        return progress

    def _shards(self, read: Read, old: Units) -> Iterable[torch.Tensor]:
        """Return this rank's shard of each unit, as your reshard.py reads it from an old layout."""
        return resharded(read, old, self.units, self.rank)

    @torch.no_grad()
    def _restore(self, kind: str, shards: Iterable[torch.Tensor], updates: int) -> None:
        """Set the master weights and the parameters, or one of AdamW's moments, from shards."""
        for (names, layout), shard in zip(self.units, shards, strict=True):
            for name, part in zip(names, layout.parts(self.rank), strict=True):
                master, parameter = self.masters[name], self.parameters[name]
                value = self._own_part(name, shard[part]).view_as(master).to(master.device)
                if kind == "masters":
                    master.copy_(value)
                    parameter.copy_(value)  # rounded
                else:
                    state = self.adam.state[master]
                    state["step"] = torch.tensor(float(updates), device=master.device)
                    state[kind] = value.clone()

    def _own_part(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Return the part of a tensor that this rank holds, given what it read."""
        return value

    def _require_same(self, saved: dict, path: Path) -> None:
        """Raise UserError unless a checkpoint is one of this model."""
        for name, value in saved["flags"].items():
            now = getattr(self.ctx.config, name, None)
            if (tuple(value) if isinstance(value, list) else value) != now:
                raise UserError(f"{path} is another model's: it was saved with {spelled(name)} "
                                f"{value}, and this run has {now}; nearest: {spelled(name)} "
                                f"{value}")
        different = next((name for name in self._compared(saved["shapes"])
                          if saved["shapes"].get(name) != self.shapes.get(name)), None)
        if different is not None:
            raise UserError(f"{path} is another model's: {different} has the shape "
                            f"{saved['shapes'].get(different)} there, and here "
                            f"{self.shapes.get(different)}")

    def _compared(self, saved: dict) -> Iterable[str]:
        """Return the names of the tensors whose shapes must match the checkpoint's."""
        return (*self.shapes, *saved)


class ShardFiles:
    """The ranks' files of a checkpoint, mapped into memory, so that only what is used is read."""

    def __init__(self, folder: Path, units: Units, sums: list[list[list[int]]]) -> None:
        """Raise DamagedError unless there is a complete file of every rank.

        Args:
            folder: the checkpoint's.
            units: those of the layout in which it was saved.
            sums: CRC-32 by rank, kind, and unit.
        """
        self.sizes = [layout.shard_size for _, layout in units]
        self.folder, self.sums, self.files = folder, sums, []
        self.intact: set[tuple[int, int, int]] = set()  # rank, kind, and unit
        count = len(KINDS) * sum(self.sizes)
        for rank in range(len(sums)):
            path = folder / rank_file(rank)
            if not path.exists():
                raise DamagedError(f"there is no {path}")
            if (size := path.stat().st_size) != 4 * count:
                raise DamagedError(f"{path} is incomplete: it has {size} bytes instead of "
                                   f"{4 * count}")
            self.files.append(torch.from_file(str(path), size=count, dtype=torch.float32))

    def reader(self, kind: str) -> Read:
        """Return the function `read` that your `reshard` calls, for one of KINDS."""
        def read(rank: int, unit: int, start: int, stop: int) -> torch.Tensor:
            if not 0 <= start <= stop <= self.sizes[unit]:
                raise UserError(f"mytrainer/reshard.py: read({rank}, {unit}, {start}, {stop}) asks "
                                f"for elements of a shard that has {self.sizes[unit]}")
            return self._section(rank, KINDS.index(kind), unit)[start:stop]

        return read

    def _section(self, rank: int, kind: int, unit: int) -> torch.Tensor:
        """Return a rank's shard of a unit. Raises DamagedError if it is not what was saved."""
        start = kind * sum(self.sizes) + sum(self.sizes[:unit])
        section = self.files[rank][start:start + self.sizes[unit]]
        if (rank, kind, unit) not in self.intact:
            if zlib.crc32(section.numpy().data) != self.sums[rank][kind][unit]:
                raise DamagedError(f"{self.folder / rank_file(rank)} is damaged: its checksum of "
                                   f"{KINDS[kind]}, unit {unit}, differs")
            self.intact.add((rank, kind, unit))
        return section


def resharded(read: Read, old: Units, new: Units, rank: int) -> list[torch.Tensor]:
    """Call your `reshard`, and return its shards. Raises UserError if their sizes are wrong."""
    shards = pieces.load("reshard").reshard(read, old, new, rank)
    sizes = [shard.numel() for shard in shards]
    if sizes != (right := [one.shard_size for _, one in new]):
        raise UserError(f"mytrainer/reshard.py: reshard returns shards of {sizes} elements instead "
                        f"of {right}")
    return shards


def rank_file(rank: int) -> str:
    return f"rank_{rank:03d}.bin"


def agree(error: str | None, value: object = None) -> list:
    """Return the values of all ranks. Raises UserError on all of them if one has an error."""
    results: list[tuple] = [()] * dist.get_world_size()
    dist.all_gather_object(results, (error, value))
    for text, _ in results:
        if text is not None:
            raise UserError(text)
    return [value for _, value in results]


def publish(folder: Path, layout: dict) -> None:
    """Complete a folder, rename it, and let LATEST name it. Raises OSError."""
    text = json.dumps(layout)
    with open(folder / LAYOUT, "w") as file:
        file.write(json.dumps({"crc32": zlib.crc32(text.encode()), "layout": text}))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    name, number = folder.name.removeprefix(UNFINISHED), 1
    final = folder.with_name(name)
    while final.exists():  # it may be what LATEST names
        number += 1
        final = folder.with_name(f"{name}_{number}")
    folder.rename(final)
    sync_folder(final.parent)
    with atomic_file(final.parent / LATEST) as file:
        file.write(final.name.encode())


def latest(root: Path) -> Path | None:
    """Return the folder that LATEST names, or None if there is no LATEST. Raises DamagedError."""
    path = root / LATEST
    if not path.exists():
        return None
    name = path.read_text(errors="replace").strip()
    if not name.startswith("iter_") or not (root / name).is_dir():
        raise DamagedError(f"{path} names {name[:80]!r}, which is no folder there")
    return root / name


def read_layout(folder: Path) -> dict:
    """Return the content of a folder's LAYOUT. Raises DamagedError if it is not what was saved."""
    path = folder / LAYOUT
    try:
        outer = json.loads(path.read_text())
        if zlib.crc32(outer["layout"].encode()) != outer["crc32"]:
            raise ValueError("its checksum differs")
        return json.loads(outer["layout"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is not what my_trainer.py saves ({error})") from error


def others(root: Path) -> str:
    """Return the end of an error: the folders that LATEST could name instead."""
    now = (root / LATEST).read_text(errors="replace").strip()
    names = sorted(path.parent.name for path in root.glob(f"iter_*/{LAYOUT}"))
    names = [name for name in names if name != now]
    return f"; {root / LATEST} could name one of: {', '.join(names)}" if names else ""

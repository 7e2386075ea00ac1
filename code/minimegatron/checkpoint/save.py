"""Checkpoints in Megatron's layout, written completely or not at all (load.py reads them).

    SAVE/iter_0000100/mp_rank_00/model_optim_rng.pt     one file per part of the model: mp_rank_TT
                                                        of tensor-parallel rank TT, or
                                                        mp_rank_TT_PPP of its stage PPP
              /mp_rank_00/distrib_optim_000.pt  with --use-distributed-optimizer: moments and
                                                master weights that the first replica owns, .._001
                                                the second one, and so on
              /SHA256SUMS                       our addition: `sha256sum -c` checks it
    SAVE/latest_checkpointed_iteration.txt              the tracker, written last

A process may be killed, or the power may fail, at any moment. So the files are written under
another name, synced, and renamed, and only then does the tracker point to them. With --async-save,
async_save.py writes them while training goes on.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.checkpoint.checksums import sha256, write_sums
from minimegatron.checkpoint.files import replica_file, shard_path
from minimegatron.checkpoint.optimizer_state import (
    learning_rate_state,
    optimizer_state,
    owned_state,
)
from minimegatron.context import Context, Progress
from minimegatron.data.atomic import atomic_file, sync_folder
from minimegatron.errors import UserError
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.report import log_lines

VERSION = 3.0
TRACKER = "latest_checkpointed_iteration.txt"
REPLACED = ".replaced_"


def folder_of(root: Path, iteration: int) -> Path:
    return root / f"iter_{iteration:07d}"


def read_folder(root: Path, iteration: int) -> Path:
    """Return the iteration's folder, or the previous copy if a rewrite was interrupted."""
    final = folder_of(root, iteration)
    return replaced(final) if replaced(final).exists() and not final.exists() else final


def unfinished(final: Path) -> Path:
    return final.with_name(f".unfinished_{final.name}")


def replaced(final: Path) -> Path:
    return final.with_name(f"{REPLACED}{final.name}")


def shard_file(ctx: Context) -> Path:
    """Return the path of this rank's file inside an iteration's folder."""
    return shard_path(ctx.grid.tp.index, ctx.grid.pp.index, ctx.grid.pp.size)


def chunks_by_key(model: nn.Module) -> dict[str, nn.Module]:
    """Return the model's chunks by Megatron's keys: model, or model0, .. if interleaved."""
    if isinstance(model, nn.ModuleList):
        return {f"model{chunk}": part for chunk, part in enumerate(model)}
    return {"model": model}


def save(ctx: Context, model: nn.Module, optimizer: Optimizer, learning_rate: LearningRate,
         progress: Progress, padded_vocab_size: int) -> None:
    """Write a checkpoint to --save; every rank must call it.

    Args:
        model: this rank's chunks.
        optimizer: saved unless --no-save-optim.
        learning_rate: its progress is saved.
        progress: names the folder.
        padded_vocab_size: rows of the word embedding.

    Raises UserError if a file cannot be written; earlier checkpoints stay intact.
    """
    final = begin(ctx, progress.iteration)
    error, sums = None, {}
    try:
        with shard_files(ctx, model, optimizer, learning_rate, progress, padded_vocab_size) as own:
            sums = write_files(own, unfinished(final))
    except (OSError, RuntimeError) as failed:
        error = str(failed)
    finish(ctx, error, sums, final, progress.iteration)


def begin(ctx: Context, iteration: int) -> Path:
    """Return the folder of a checkpoint that is about to be saved; every rank must call it."""
    root = Path(ctx.config.save)
    log_lines.print_saving(ctx, root, iteration)
    if ctx.grid.rank == 0:
        remove_leftovers(root)
    dist.barrier()
    return folder_of(root, iteration)


def finish(ctx: Context, error: str | None, sums: dict[str, str], final: Path, iteration: int
           ) -> None:
    """Publish a checkpoint whose files are written; every rank must call it.

    Args:
        error: this rank's, if it could not write.
        sums: this rank's checksums by file.
        final: the iteration's folder.
        iteration: for the tracker.

    Raises UserError on all ranks if one of them failed.
    """
    sums = agree(ctx, error, sums, final)
    try:
        if ctx.grid.rank == 0:
            write_sums(unfinished(final), sums)
            publish(final, iteration)
    except OSError as failed:
        error = str(failed)
    agree(ctx, error, sums, final)
    log_lines.print_saved(ctx, final.parent, iteration)


@contextmanager
def shard_files(ctx: Context, model: nn.Module, optimizer: Optimizer, learning_rate: LearningRate,
                progress: Progress, padded_vocab_size: int) -> Iterator[dict[Path, dict]]:
    """Return a context with the contents of this rank's files, by path inside the folder.

    Every rank must enter it, because sharded parameters are gathered. Of the ranks that hold the
    same part, one gets its file; each replica that owns optimizer state gets one with that.
    Arguments as in `save`.
    """
    config, replica, name, files = ctx.config, ctx.grid.replicas.index, shard_file(ctx), {}
    divided, saves = config.use_distributed_optimizer, not config.no_save_optim
    with optimizer.ddp.full_params():
        if ctx.grid.writes_shard:
            files[name] = shard_state(ctx, model, learning_rate, progress, padded_vocab_size)
            if saves:
                files[name]["optimizer"] = optimizer_state(optimizer, divided)
        if saves and divided and replica < config.sharding_size:  # one of the first instance
            shapes = {key: list(weight.shape) for key, weight in optimizer.ddp.params.items()}
            files[name.with_name(replica_file(replica))] = {
                "iteration": progress.iteration, "replicas": config.sharding_size,
                "shapes": shapes, "owned": owned_state(optimizer)}
        yield files


def shard_state(ctx: Context, model: nn.Module, learning_rate: LearningRate, progress: Progress,
                padded_vocab_size: int) -> dict:
    """Return the content of `shard_file`, without the optimizer; arguments as in `save`."""
    return {
        "args": {**dataclasses.asdict(ctx.config), **dataclasses.asdict(progress),
                 "padded_vocab_size": padded_vocab_size},
        "checkpoint_version": VERSION, "iteration": progress.iteration,
        "lr_scheduler": learning_rate_state(learning_rate),
        **{name: part.state_dict() for name, part in chunks_by_key(model).items()},
        **random_state(),
    }


def write_files(files: dict[Path, dict], folder: Path) -> dict[str, str]:
    """Write this rank's files and return their checksums by path inside the folder.

    Args:
        files: contents by path inside the folder.
        folder: under its temporary name.

    Raises OSError, which names the file, if one cannot be written.
    """
    sums = {}
    for name, content in files.items():
        try:
            write_synced(folder / name, content)
            sums[str(name)] = sha256(folder / name)
        except (OSError, RuntimeError) as error:
            # While it handles the error of a full disk, torch raises one about its own position.
            cause = error.__context__ if isinstance(error.__context__, OSError) else error
            raise OSError(f"{folder / name}: {cause}") from error
    return sums


def remove_leftovers(root: Path) -> None:
    """Remove the files of a run that was killed while saving, perhaps with another layout."""
    for leftover in root.glob(unfinished(Path("iter_*")).name):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in root.glob(replaced(Path("iter_*")).name):
        if (root / leftover.name.removeprefix(REPLACED)).exists():
            shutil.rmtree(leftover, ignore_errors=True)


def agree(ctx: Context, error: str | None, sums: dict[str, str], final: Path) -> dict[str, str]:
    """Return the checksums of all ranks; every rank must call it.

    Args:
        error: this rank's, if it could not write.
        sums: this rank's checksums by file.
        final: the iteration's folder.

    Raises UserError on all ranks if one of them failed, after removing the unfinished files.
    """
    results: list[tuple] = [()] * ctx.grid.world_size
    dist.all_gather_object(results, (error, sums))
    for rank, (text, _) in enumerate(results):
        if text is not None:
            shutil.rmtree(unfinished(final), ignore_errors=True)
            raise UserError(f"--save {final.parent}: rank {rank} could not write the checkpoint: "
                            f"{text}; earlier checkpoints are untouched")
    return {name: digest for _, theirs in results for name, digest in theirs.items()}


def write_synced(path: Path, state: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def publish(final: Path, iteration: int) -> None:
    """Rename the finished folder into place, then point the tracker at it."""
    sync_folder(unfinished(final))
    if final.exists():  # no portable system call exchanges folders; see `read_folder`
        shutil.rmtree(replaced(final), ignore_errors=True)
        final.rename(replaced(final))
    try:
        unfinished(final).rename(final)
    except OSError:
        if replaced(final).exists():
            replaced(final).rename(final)
        raise
    sync_folder(final.parent)
    with atomic_file(final.parent / TRACKER) as file:
        file.write(str(iteration).encode())
    shutil.rmtree(replaced(final), ignore_errors=True)


def random_state() -> dict:
    """Return Megatron's fields, although nothing draws from them: dropout here has no state."""
    return {"random_rng_state": random.getstate(), "np_rng_state": None,
            "torch_rng_state": torch.get_rng_state(), "cuda_rng_state": None,
            "rng_tracker_states": {}}

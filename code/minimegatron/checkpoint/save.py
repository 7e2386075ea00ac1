"""Checkpoints in Megatron's layout, written completely or not at all (load.py reads them).

    SAVE/iter_0000100/mp_rank_00/model_optim_rng.pt     one file per part of the model: mp_rank_TT
                                                        of tensor-parallel rank TT, or
                                                        mp_rank_TT_PPP of its stage PPP
              /mp_rank_00/distrib_optim.pt      with --use-distributed-optimizer: moments and
                                                master weights, gathered from the replicas' shards
              /SHA256SUMS                       our addition: `sha256sum -c` checks it
    SAVE/latest_checkpointed_iteration.txt              the tracker, written last

A process may be killed, or the power may fail, at any moment. So the files are written under
another name, synced, and renamed, and only then does the tracker point to them.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.checkpoint.checksums import sha256, write_sums
from minimegatron.checkpoint.optimizer_state import SHARDED, learning_rate_state, optimizer_state
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
    tp, pp = ctx.grid.tp, ctx.grid.pp
    suffix = f"_{pp.index:03d}" if pp.size > 1 else ""
    return Path(f"mp_rank_{tp.index:02d}{suffix}") / "model_optim_rng.pt"


def distributed_optimizer_file(ctx: Context) -> Path:
    """Return the path of the sharded optimizer's file, beside `shard_file`."""
    return shard_file(ctx).with_name("distrib_optim.pt")


def split_optimizer(ctx: Context, state: dict) -> tuple[dict, dict]:
    """Split the optimizer's state between `shard_file` and `distributed_optimizer_file`."""
    names = SHARDED if ctx.config.use_distributed_optimizer else ()
    return ({name: value for name, value in state.items() if name not in names},
            {name: state[name] for name in names if name in state})


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
    root = Path(ctx.config.save)
    log_lines.print_saving(ctx, root, progress.iteration)
    final = folder_of(root, progress.iteration)
    if ctx.grid.rank == 0:
        remove_leftovers(root)
    dist.barrier()
    error, sums = None, {}
    try:
        moments = None if ctx.config.no_save_optim else optimizer_state(optimizer)  # gathers shards
        with optimizer.ddp.full_params():
            if ctx.grid.writes_shard:
                state = shard_state(ctx, model, learning_rate, progress, padded_vocab_size)
                sums = write_shard(ctx, state, moments, unfinished(final))
    except (OSError, RuntimeError) as failed:  # torch reports a full disk as RuntimeError
        error = str(failed)
    sums = agree(ctx, error, sums, final)
    try:
        if ctx.grid.rank == 0:
            write_sums(unfinished(final), sums)
            publish(final, progress.iteration)
    except OSError as failed:
        error = str(failed)
    agree(ctx, error, sums, final)
    log_lines.print_saved(ctx, root, progress.iteration)


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


def write_shard(ctx: Context, state: dict, moments: dict | None, folder: Path) -> dict[str, str]:
    """Write this rank's files and return their checksums by path inside the folder.

    Args:
        state: the content of `shard_file`, without the optimizer.
        moments: the optimizer's state, unless --no-save-optim.
        folder: under its temporary name.

    Raises OSError or RuntimeError if the disk is full.
    """
    files = {shard_file(ctx): state}
    if moments is not None:
        state["optimizer"], divided = split_optimizer(ctx, moments)
        if divided:
            files[distributed_optimizer_file(ctx)] = divided
    sums = {}
    for name, content in files.items():
        write_synced(folder / name, content)
        sums[str(name)] = sha256(folder / name)
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

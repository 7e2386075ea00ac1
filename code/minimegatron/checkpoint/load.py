"""Resume from a checkpoint: find an intact one, load it as data, and refuse another model's.

All ranks search together and reach the same decision, so none trains on after another has stopped.
A file is never unpickled into code (`weights_only=True`).
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting
from minimegatron.arguments.stages import split_flags
from minimegatron.checkpoint.checksums import SUMS, find_problems
from minimegatron.checkpoint.optimizer_state import load_learning_rate_state, load_optimizer_state
from minimegatron.checkpoint.save import (
    TRACKER,
    chunks_by_key,
    distributed_optimizer_file,
    folder_of,
    read_folder,
    shard_file,
)
from minimegatron.context import Context, Progress
from minimegatron.errors import UserError
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.report import log_lines

# The padded vocabulary comes last: it may follow from the layout.
MUST_MATCH = (*names_affecting(STATE, Config), "padded_vocab_size")


def load(ctx: Context, model: nn.Module, optimizer: Optimizer, learning_rate: LearningRate,
         padded_vocab_size: int) -> Progress:
    """Resume from --load, or start at iteration 0 if it has no checkpoint; every rank must call it.

    Args:
        model: its parameters are overwritten.
        optimizer: its state is overwritten.
        learning_rate: its progress is overwritten.
        padded_vocab_size: rows of the word embedding.

    Raises UserError, on all ranks if the checkpoint is corrupted.
    """
    root = Path(ctx.config.load)
    if root.exists() and not root.is_dir():
        raise UserError(f"--load {root} is a file: give the folder that holds {TRACKER}")
    folder = find_checkpoint(ctx, root)
    if folder is None:
        return Progress()
    if not (folder / SUMS).exists():
        ctx.print_rank_0(f"WARNING: {folder} has no {SUMS}: it can be read, but not compared with "
                         "what was saved")
    path = folder / shard_file(ctx)
    if not path.exists():
        # A checkpoint of another layout has other files, and any of them records the layout.
        for other in sorted(folder.glob(f"mp_rank_*/{path.name}"))[:1]:
            check_same_model(ctx, read_state(other)["args"], padded_vocab_size, other)
    state = read_state(path)
    log_lines.print_checkpoint_version(ctx, state["checkpoint_version"])
    check_same_model(ctx, state["args"], padded_vocab_size, path)
    try:
        progress = restore(ctx, state, model, optimizer, learning_rate, path)
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error
    dist.barrier()
    log_lines.print_loaded(ctx, root, progress.iteration)
    return progress


def find_checkpoint(ctx: Context, root: Path) -> Path | None:
    """Return the folder to load, or None if there is nothing to load; every rank must call it.

    It is the tracker's checkpoint if that is intact, else with --load-last-good the newest one that
    is. Raises UserError.
    """
    tracker, last_good = root / TRACKER, ctx.config.load_last_good
    saved = saved_iterations(ctx, root)
    iteration = agreed_iteration(ctx, tracker)
    if iteration is None and not (last_good and saved):
        log_lines.print_no_checkpoint(ctx, tracker)
        if saved:
            ctx.print_rank_0(f"    although there are checkpoints: {folder_names(saved)}; "
                             "--load-last-good takes the newest complete one")
        return None
    if iteration is None:
        problems = [f"there is no {TRACKER}"]
    elif isinstance(iteration, str):
        problems = [iteration]
    else:
        log_lines.print_loading(ctx, root, iteration)
        problems = problems_on_all_ranks(ctx, read_folder(root, iteration))
    if not problems:
        return read_folder(root, iteration)
    return last_good_checkpoint(ctx, root, problems,
                                [other for other in saved if other != iteration])


def last_good_checkpoint(ctx: Context, root: Path, problems: list[str], others: list[int]) -> Path:
    """Return the newest intact checkpoint; every rank must call it.

    Args:
        root: --load.
        problems: what is wrong with the checkpoint that the tracker names.
        others: the other checkpoints' iterations, newest first.

    Raises UserError if there is none, or without --load-last-good.
    """
    intact = [other for other in others if not problems_on_all_ranks(ctx, folder_of(root, other))]
    summary = (f"--load {root}: {'; '.join(problems)}. Complete checkpoints there: "
               f"{folder_names(intact)}")
    if not intact:
        raise UserError(summary)
    if not ctx.config.load_last_good:
        raise UserError(f"{summary}; --load-last-good takes the newest of them, or write its "
                        f"number into {root / TRACKER}")
    ctx.print_rank_0("\n".join([
        "", "!" * 72, f"WARNING: {summary}", "WARNING: --load-last-good: RESUMING FROM ITERATION "
        f"{intact[0]}; what came after it is trained again", "!" * 72, ""]))
    log_lines.print_loading(ctx, root, intact[0])
    return folder_of(root, intact[0])


def folder_names(iterations: list[int]) -> str:
    """Return the folders' names as a list in a sentence."""
    return ", ".join(folder_of(Path(), iteration).name for iteration in iterations) or "none"


def saved_iterations(ctx: Context, root: Path) -> list[int]:
    """Return the iterations that have a folder on rank 0, newest first; every rank must call it."""
    digits = [folder.name.removeprefix("iter_") for folder in root.glob("iter_*")]
    saved = [sorted((int(text) for text in digits if text.isascii() and text.isdigit()),
                    reverse=True)]
    dist.broadcast_object_list(saved)
    return saved[0]


def problems_on_all_ranks(ctx: Context, folder: Path) -> list[str]:
    """Return the problems of a checkpoint's folder; every rank must call it.

    Each rank checks a share of the files.
    """
    on_ranks: list[list[str]] = [[]] * ctx.grid.world_size
    dist.all_gather_object(on_ranks, find_problems(folder, ctx.grid.rank, ctx.grid.world_size))
    return list(dict.fromkeys(problem for problems in on_ranks for problem in problems))


def agreed_iteration(ctx: Context, tracker: Path) -> int | str | None:
    """Return the tracker's iteration as `read_tracker` does; every rank must call it.

    Raises UserError if the ranks see different trackers.
    """
    iteration = read_tracker(tracker)
    on_ranks: list[int | str | None] = [None] * ctx.grid.world_size
    dist.all_gather_object(on_ranks, iteration)
    if len(set(on_ranks)) > 1:
        views = ", ".join(f"rank {rank}: {number}" for rank, number in enumerate(on_ranks))
        raise UserError(f"the ranks do not see the same {tracker} ({views}): --load needs a folder "
                        "that all nodes share")
    return iteration


def read_tracker(tracker: Path) -> int | str | None:
    """Return the number in the tracker, None if there is no file, or a sentence about bad text."""
    if not tracker.exists():
        return None
    text = tracker.read_text(errors="replace").strip()
    if text.isascii() and text.isdigit():
        return int(text)
    return f"{tracker} should hold the number of an iteration, but holds {text[:80]!r}"


def restore(ctx: Context, state: dict, model: nn.Module, optimizer: Optimizer,
            learning_rate: LearningRate, path: Path) -> Progress:
    """Load a checkpoint's state into the model, the optimizer, and the learning rate.

    Args:
        ctx: for --finetune and --no-load-optim.
        state: the content of this rank's file.
        model: its parameters are overwritten.
        optimizer: its state is overwritten.
        learning_rate: its progress is overwritten.
        path: this rank's file.

    Raises UserError if the file lacks the optimizer; other errors mean that it is malformed.
    """
    with optimizer.ddp.full_params(write_back=True):
        for name, part in chunks_by_key(model).items():
            part.load_state_dict({key: value for key, value in state[name].items()
                                  if part.fp8 is not None or not key.startswith("fp8.")})
    optimizer.reload_model_params()
    if ctx.config.finetune:
        return Progress()
    if not ctx.config.no_load_optim:
        if "optimizer" not in state:
            raise UserError(f"{path} was saved with --no-save-optim: add --no-load-optim, or "
                            "--finetune to start at iteration 0")
        if state["args"].get("use_distributed_optimizer"):
            state["optimizer"] |= read_file(path.with_name(distributed_optimizer_file(ctx).name))
        load_optimizer_state(optimizer, state["optimizer"])
        load_learning_rate_state(ctx.config, learning_rate, state["lr_scheduler"])
    return Progress(state["iteration"], state["args"]["consumed_train_samples"],
                    state["args"]["consumed_valid_samples"])


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


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
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
            ValueError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error


def check_same_model(ctx: Context, saved: dict, padded_vocab_size: int, path: Path) -> None:
    """Raise UserError if `saved`, the arguments in the file `path`, are those of another model."""
    given = {**dataclasses.asdict(ctx.config), "padded_vocab_size": padded_vocab_size}
    # A checkpoint from before a flag existed has that flag's default.
    saved = {**dataclasses.asdict(Config()), **saved}
    for name in MUST_MATCH:
        if saved.get(name) != given[name]:
            ways = " ".join(split_flags(saved)) or "an even split"
            hint = f"; the checkpoint has {ways}" if name == "layers_per_chunk" else ""
            raise UserError(f"{name} value from checkpoint ({saved.get(name)}) is not equal to "
                            f"the input argument value ({given[name]}){hint}. [{path}]")

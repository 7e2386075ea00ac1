"""Resuming: find a whole checkpoint, load it as data, never as code, and refuse another model.

All ranks look together and decide alike, so none trains on while another has stopped.
"""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.arguments.pipeline import split_flags
from minimegatron.arguments.table.flag import STATE, names_affecting
from minimegatron.checkpoint.checksums import SUMS, damage
from minimegatron.checkpoint.progress import Progress
from minimegatron.checkpoint.save import (
    TRACKER,
    divided_of,
    folder_of,
    parts,
    read_folder,
    shard_of,
)
from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.optim.learning_rate import LearningRate
from minimegatron.optim.optimizer import Optimizer

# The padded vocabulary comes last: it may follow from the layout.
MUST_MATCH = (*names_affecting(STATE, Config), "padded_vocab_size")


def load(ctx: Context, model: nn.Module, optimizer: Optimizer, learning_rate: LearningRate,
         padded_vocab_size: int) -> Progress:
    """Resume from --load, or start at iteration 0 when there is nothing yet; every rank must call
    it. Raises UserError, on all ranks alike where the checkpoint is damaged."""
    root = Path(ctx.config.load)
    if root.exists() and not root.is_dir():
        raise UserError(f"--load {root} is a file: give the folder that holds {TRACKER}")
    folder = find(ctx, root)
    if folder is None:
        return Progress()
    if not (folder / SUMS).exists():
        ctx.say(f"WARNING: {folder} has no {SUMS}: it can be read, but not compared with what "
                "was saved")
    path = folder / shard_of(ctx)
    if not path.exists():
        # Another layout has other files: any of them knows which.
        for other in sorted(folder.glob(f"mp_rank_*/{path.name}"))[:1]:
            check_same_model(ctx, read_state(other)["args"], padded_vocab_size, other)
    state = read_state(path)
    ctx.say(f" checkpoint version {state['checkpoint_version']}")
    check_same_model(ctx, state["args"], padded_vocab_size, path)
    try:
        progress = restore(ctx, state, model, optimizer, learning_rate, path)
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error
    dist.barrier()
    ctx.say(f"  successfully loaded checkpoint from {root} at iteration {progress.iteration}")
    return progress


def find(ctx: Context, root: Path) -> Path | None:
    """The folder to load: the tracker's if it is whole, else the last good one where
    --load-last-good allows it. None when there is nothing to load."""
    tracker, last_good = root / TRACKER, ctx.config.load_last_good
    there = iterations(ctx, root)
    iteration = same_everywhere(ctx, tracker)
    if iteration is None and not (last_good and there):
        ctx.say(f"WARNING: could not find the metadata file {tracker} ")
        ctx.say("    will not load any checkpoints and will start from random")
        if there:
            ctx.say(f"    although there are checkpoints: {names(there)}; --load-last-good takes "
                    "the newest that is whole")
        return None
    if iteration is None:
        wrong = [f"there is no {TRACKER}"]
    elif isinstance(iteration, str):
        wrong = [iteration]
    else:
        ctx.say(f" loading checkpoint from {root} at iteration {iteration}")
        wrong = damage_everywhere(ctx, read_folder(root, iteration))
    if not wrong:
        return read_folder(root, iteration)
    whole = [other for other in there
             if other != iteration and not damage_everywhere(ctx, folder_of(root, other))]
    said = f"--load {root}: {'; '.join(wrong)}. Whole checkpoints there: {names(whole)}"
    if not whole:
        raise UserError(said)
    if not last_good:
        raise UserError(f"{said}; --load-last-good takes the newest of them, or write its number "
                        f"into {tracker}")
    ctx.say("\n".join(["", "!" * 72, f"WARNING: {said}",
                       f"WARNING: --load-last-good: RESUMING FROM ITERATION {whole[0]}; what "
                       "came after it is trained again", "!" * 72, ""]))
    ctx.say(f" loading checkpoint from {root} at iteration {whole[0]}")
    return folder_of(root, whole[0])


def names(iterations: list[int]) -> str:
    return ", ".join(folder_of(Path(), iteration).name for iteration in iterations) or "none"


def iterations(ctx: Context, root: Path) -> list[int]:
    """The iterations that have a folder, newest first, as rank 0 sees them."""
    digits = [folder.name.removeprefix("iter_") for folder in root.glob("iter_*")]
    seen = [sorted((int(text) for text in digits if text.isascii() and text.isdigit()),
                   reverse=True)]
    dist.broadcast_object_list(seen)
    return seen[0]


def damage_everywhere(ctx: Context, folder: Path) -> list[str]:
    """What is wrong with a folder; the ranks divide its files among them, and all learn all."""
    found: list[list[str]] = [[]] * ctx.grid.world_size
    dist.all_gather_object(found, damage(folder, ctx.grid.rank, ctx.grid.world_size))
    return list(dict.fromkeys(sentence for part in found for sentence in part))


def same_everywhere(ctx: Context, tracker: Path) -> int | str | None:
    """The iteration to load, None for none, or what is wrong with the tracker; UserError where
    nodes see different ones."""
    mine = read_tracker(tracker)
    seen: list[int | str | None] = [None] * ctx.grid.world_size
    dist.all_gather_object(seen, mine)
    if len(set(seen)) > 1:
        views = ", ".join(f"rank {rank}: {number}" for rank, number in enumerate(seen))
        raise UserError(f"the ranks do not see the same {tracker} ({views}): --load needs a folder "
                        "that all nodes share")
    return mine


def read_tracker(tracker: Path) -> int | str | None:
    """The number in the file; None where there is no file; a sentence where there is no number."""
    if not tracker.exists():
        return None
    text = tracker.read_text(errors="replace").strip()
    if text.isascii() and text.isdigit():
        return int(text)
    return f"{tracker} should hold the number of an iteration, but holds {text[:80]!r}"


def restore(ctx: Context, state: dict, model: nn.Module, optimizer: Optimizer,
            learning_rate: LearningRate, path: Path) -> Progress:
    """Put the loaded state in its places."""
    for name, part in parts(model).items():
        part.load_state_dict(state[name])
    optimizer.reload_model_params()
    if ctx.config.finetune:
        return Progress()
    if not ctx.config.no_load_optim:
        if "optimizer" not in state:
            raise UserError(f"{path} was saved with --no-save-optim: add --no-load-optim, or "
                            "--finetune to start at iteration 0")
        if state["args"].get("use_distributed_optimizer"):
            state["optimizer"] |= read_file(path.with_name(divided_of(ctx).name))
        optimizer.load_state_dict(state["optimizer"])
        learning_rate.load_state_dict(state["lr_scheduler"])
    return Progress(state["iteration"], state["args"]["consumed_train_samples"],
                    state["args"]["consumed_valid_samples"])


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def read_state(path: Path) -> dict:
    """Load one file as plain data, never as code. Raises UserError when it is not ours."""
    state = read_file(path)
    missing = {"args", "iteration", "checkpoint_version"} - set(state)
    if not any(name.startswith("model") for name in state):
        missing.add("model")
    if missing:
        raise UserError(f"{path} is not a checkpoint of this trainer: it has no "
                        f"{', '.join(sorted(missing))}")
    return state


def read_file(path: Path) -> dict:
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
            ValueError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error


def check_same_model(ctx: Context, saved: dict, padded_vocab_size: int, path: Path) -> None:
    wanted = {**dataclasses.asdict(ctx.config), "padded_vocab_size": padded_vocab_size}
    for name in MUST_MATCH:
        if saved.get(name) != wanted[name]:
            ways = " ".join(split_flags(saved)) or "an even split"
            hint = f"; the checkpoint has {ways}" if name == "layers_per_chunk" else ""
            raise UserError(f"{name} value from checkpoint ({saved.get(name)}) is not equal to "
                            f"the input argument value ({wanted[name]}){hint}. [{path}]")

"""Checkpoints in Megatron's layout: written whole or not at all, loaded as data only.

    SAVE/iter_0000100/mp_rank_00/model_optim_rng.pt     one file per part of the model: mp_rank_TT
                                                        of tensor-parallel rank TT, or
                                                        mp_rank_TT_PPP of its stage PPP
    SAVE/latest_checkpointed_iteration.txt              the tracker, written last
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minimegatron.context import Context
from minimegatron.errors import UserError
from minimegatron.optimizer import LearningRate, Optimizer

VERSION = 3.0
TRACKER = "latest_checkpointed_iteration.txt"
# The layout comes first: the padded vocabulary may follow from it.
MUST_MATCH = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "num_layers",
              "layers_per_chunk", "hidden_size", "num_attention_heads", "max_position_embeddings",
              "ffn_hidden_size", "kv_channels", "padded_vocab_size", "tokenizer_type")


@dataclasses.dataclass
class Progress:
    """How far a run is; travels in the checkpoint."""

    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_valid_samples: int = 0


def folder_of(root: Path, iteration: int) -> Path:
    return root / f"iter_{iteration:07d}"


def shard_of(ctx: Context) -> Path:
    """This rank's file inside an iteration's folder."""
    tp, pp = ctx.grid.shard
    suffix = f"_{pp:03d}" if ctx.grid.pp.size > 1 else ""
    return Path(f"mp_rank_{tp:02d}{suffix}") / "model_optim_rng.pt"


def save(ctx: Context, model: nn.Module, optimizer: Optimizer, schedule: LearningRate,
         progress: Progress, padded_vocab_size: int) -> None:
    """Write a checkpoint; every rank must call it. Raises UserError when it cannot be written."""
    root = Path(ctx.config.save)
    ctx.say(f"saving checkpoint at iteration {progress.iteration:7d} to {root}")
    final = folder_of(root, progress.iteration)
    unfinished = final.with_name(f".unfinished_{final.name}")
    error = None
    if ctx.grid.rank == 0:  # what a run that was killed left here may have another layout
        shutil.rmtree(unfinished, ignore_errors=True)
    dist.barrier()
    try:
        if ctx.grid.writes_shard:
            state = {
                "args": {**dataclasses.asdict(ctx.config), **dataclasses.asdict(progress),
                         "padded_vocab_size": padded_vocab_size},
                "checkpoint_version": VERSION, "iteration": progress.iteration,
                "lr_scheduler": schedule.state_dict(),
                **{name: part.state_dict() for name, part in parts(model).items()},
                **random_state(),
            }
            if not ctx.config.no_save_optim:
                state["optimizer"] = optimizer.state_dict()
            write_synced(unfinished / shard_of(ctx), state)
    except (OSError, RuntimeError) as failed:  # torch reports a full disk as RuntimeError
        error = str(failed)
    agree(ctx, error, root, unfinished)
    try:
        if ctx.grid.rank == 0:
            publish(unfinished, final, root, progress.iteration)
    except OSError as failed:
        error = str(failed)
    agree(ctx, error, root, unfinished)
    ctx.say(f"  successfully saved checkpoint at iteration {progress.iteration:7d} to {root}")


def parts(model: nn.Module) -> dict[str, nn.Module]:
    """Upstream's keys: model, or model0, model1, .. for the chunks of an interleaved pipeline."""
    if isinstance(model, nn.ModuleList):
        return {f"model{chunk}": part for chunk, part in enumerate(model)}
    return {"model": model}


def agree(ctx: Context, error: str | None, root: Path, unfinished: Path) -> None:
    """All ranks go on, or all raise UserError and nothing half written is left."""
    errors: list[str | None] = [None] * ctx.grid.world_size
    dist.all_gather_object(errors, error)
    failed = {rank: text for rank, text in enumerate(errors) if text is not None}
    if failed:
        shutil.rmtree(unfinished, ignore_errors=True)
        rank, text = next(iter(failed.items()))
        raise UserError(f"--save {root}: rank {rank} could not write the checkpoint: {text}; "
                        "earlier checkpoints are untouched")


def write_synced(path: Path, state: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def publish(unfinished: Path, final: Path, root: Path, iteration: int) -> None:
    """Rename the finished folder into place, then point the tracker at it."""
    replaced = final.with_name(f".replaced_{final.name}")
    shutil.rmtree(replaced, ignore_errors=True)
    if final.exists():
        final.rename(replaced)
    try:
        unfinished.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    shutil.rmtree(replaced, ignore_errors=True)
    tracker = root / f".{TRACKER}"
    with open(tracker, "w") as file:
        file.write(str(iteration))
        file.flush()
        os.fsync(file.fileno())
    tracker.rename(root / TRACKER)


def random_state() -> dict:
    """Upstream's fields. Nothing here draws from these generators: dropout has no state."""
    return {"random_rng_state": random.getstate(), "np_rng_state": None,
            "torch_rng_state": torch.get_rng_state(), "cuda_rng_state": None,
            "rng_tracker_states": {}}


def load(ctx: Context, model: nn.Module, optimizer: Optimizer, schedule: LearningRate,
         padded_vocab_size: int) -> Progress:
    """Resume from --load, or start at iteration 0 when there is nothing yet. Raises UserError."""
    root = Path(ctx.config.load)
    tracker = root / TRACKER
    if root.exists() and not root.is_dir():
        raise UserError(f"--load {root} is a file: give the folder that holds {TRACKER}")
    iteration = same_everywhere(ctx, tracker)
    if iteration is None:
        ctx.say(f"WARNING: could not find the metadata file {tracker} ")
        ctx.say("    will not load any checkpoints and will start from random")
        return Progress()
    ctx.say(f" loading checkpoint from {root} at iteration {iteration}")
    path = folder_of(root, iteration) / shard_of(ctx)
    if not path.exists():
        # Another layout has other files: any of them knows which.
        for other in sorted(path.parent.parent.glob(f"mp_rank_*/{path.name}"))[:1]:
            check_same_model(ctx, read_state(other, root)["args"], padded_vocab_size, other)
    state = read_state(path, root)
    ctx.say(f" checkpoint version {state['checkpoint_version']}")
    check_same_model(ctx, state["args"], padded_vocab_size, path)
    try:
        progress = restore(ctx, state, model, optimizer, schedule, path)
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error
    dist.barrier()
    ctx.say(f"  successfully loaded checkpoint from {root} at iteration {progress.iteration}")
    return progress


def restore(ctx: Context, state: dict, model: nn.Module, optimizer: Optimizer,
            schedule: LearningRate, path: Path) -> Progress:
    """Put the loaded state in its places."""
    for name, part in parts(model).items():
        part.load_state_dict(state[name])
    if ctx.config.finetune:
        return Progress()
    if not ctx.config.no_load_optim:
        if "optimizer" not in state:
            raise UserError(f"{path} was saved with --no-save-optim: add --no-load-optim, or "
                            "--finetune to start at iteration 0")
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["lr_scheduler"])
    return Progress(state["iteration"], state["args"]["consumed_train_samples"],
                    state["args"]["consumed_valid_samples"])


def same_everywhere(ctx: Context, tracker: Path) -> int | None:
    """The iteration to load, None for none; UserError where nodes see different trackers."""
    mine = read_tracker(tracker) if tracker.exists() else None
    seen: list[int | None] = [None] * ctx.grid.world_size
    dist.all_gather_object(seen, mine)
    if len(set(seen)) > 1:
        views = ", ".join(f"rank {rank}: {number}" for rank, number in enumerate(seen))
        raise UserError(f"the ranks do not see the same {tracker} ({views}): --load needs a folder "
                        "that all nodes share")
    return mine


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def read_tracker(tracker: Path) -> int:
    text = tracker.read_text(errors="replace").strip()
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{tracker} should hold the number of an iteration, but holds {text!r}")
    return int(text)


def read_state(path: Path, root: Path) -> dict:
    """Load one file as plain data, never as code. Raises UserError when it is not ours."""
    if not path.exists():
        there = sorted(folder.name for folder in root.glob("iter_*"))
        raise UserError(f"--load {root}: there is no {path.relative_to(root)}; "
                        f"checkpoints there: {', '.join(there) or 'none'}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        missing = {"args", "iteration", "checkpoint_version"} - set(state)
        if not any(name.startswith("model") for name in state):
            missing.add("model")
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, TypeError, KeyError,
            ValueError) as error:
        raise UserError(f"{path} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error
    if missing:
        raise UserError(f"{path} is not a checkpoint of this trainer: it has no "
                        f"{', '.join(sorted(missing))}")
    return state


def check_same_model(ctx: Context, saved: dict, padded_vocab_size: int, path: Path) -> None:
    wanted = {**dataclasses.asdict(ctx.config), "padded_vocab_size": padded_vocab_size}
    for name in MUST_MATCH:
        if saved.get(name) != wanted[name]:
            raise UserError(f"{name} value from checkpoint ({saved.get(name)}) is not equal to "
                            f"the input argument value ({wanted[name]}). [{path}]")

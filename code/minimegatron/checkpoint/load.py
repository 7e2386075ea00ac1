"""Resume from a checkpoint: find an intact one, and refuse another model's (files.py reads it).

All ranks search together and reach the same decision, so none trains on after another has stopped.
The layout may differ from the one that saved; reshard.py then assembles what this rank needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path

import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.arguments.flag import STATE, names_affecting, table_of
from minimegatron.checkpoint.checksums import SUMS, find_problems
from minimegatron.checkpoint.files import LAYOUT, Layout, SavedFiles, first_line
from minimegatron.checkpoint.optimizer_state import load_learning_rate_state, load_optimizer_state
from minimegatron.checkpoint.save import TRACKER, chunks_by_key, folder_of, read_folder, shard_file
from minimegatron.context import Context, Progress
from minimegatron.errors import UserError
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.report import log_lines

MUST_MATCH = [name for name in names_affecting(STATE, Config) if name not in LAYOUT]


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
    root, device = Path(ctx.config.load), ctx.device
    if not device.has_values:
        ctx.print_rank_0(f"--load {root}: nothing is loaded, weights on a {device.label} have no "
                         "values")
        return Progress()
    if root.exists() and not root.is_dir():
        raise UserError(f"--load {root} is a file: give the folder that holds {TRACKER}")
    folder = find_checkpoint(ctx, root)
    if folder is None:
        return Progress()
    if not (folder / SUMS).exists():
        ctx.print_rank_0(f"WARNING: {folder} has no {SUMS}: it can be read, but not compared with "
                         "what was saved")
    state = on_all_ranks(ctx, lambda: read_part(ctx, folder, model, optimizer, padded_vocab_size))
    try:
        progress = restore(ctx, state, model, optimizer, learning_rate, folder)
    except (KeyError, RuntimeError, TypeError, AttributeError) as error:
        path = folder / shard_file(ctx)
        raise UserError(f"{path if path.exists() else folder} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error
    dist.barrier()
    log_lines.print_loaded(ctx, root, progress.iteration)
    return progress


def on_all_ranks(ctx: Context, read: Callable[[], dict]) -> dict:
    """Return what `read` returns; every rank must call it.

    Raises UserError on all ranks if it does on one.
    """
    state, problem = {}, None
    try:
        state = read()
    except UserError as error:
        problem = str(error)
    problems: list[str | None] = [None] * ctx.grid.world_size
    dist.all_gather_object(problems, problem)
    for text in problems:
        if text is not None:
            raise UserError(text)
    return state


def read_part(ctx: Context, folder: Path, model: nn.Module, optimizer: Optimizer,
              padded_vocab_size: int) -> dict:
    """Return the content of this rank's file, or of what it would be in this layout.

    Arguments as in `load`. Raises UserError.
    """
    config = ctx.config
    files = SavedFiles(folder, with_optimizer=not (config.finetune or config.no_load_optim))
    log_lines.print_checkpoint_version(ctx, files.first["checkpoint_version"])
    here = Layout.of({**vars(config), "padded_vocab_size": padded_vocab_size})
    try:
        check_same_model(ctx, files.first["args"], padded_vocab_size, files.first_path)
        files.check_names()
        if files.layout == here:
            return files.state(ctx.grid.tp.index, ctx.grid.pp.index)
        from minimegatron.checkpoint.reshard import assemble

        log_lines.print_resharding(ctx, str(files.layout), str(here))
        return assemble(ctx, files, model, optimizer)
    except (KeyError, RuntimeError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise UserError(f"{folder} is not a checkpoint of this trainer "
                        f"({first_line(error)})") from error


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
            learning_rate: LearningRate, folder: Path) -> Progress:
    """Load a checkpoint's state into the model, the optimizer, and the learning rate.

    Args:
        ctx: for --finetune and --no-load-optim.
        state: as `read_part` returns it.
        model: its parameters are overwritten.
        optimizer: its state is overwritten.
        learning_rate: its progress is overwritten.
        folder: the checkpoint's.

    Raises UserError if the optimizer was not saved; other errors mean that a file is malformed.
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
            raise UserError(f"{folder} was saved with --no-save-optim: add --no-load-optim, or "
                            "--finetune to start at iteration 0")
        load_optimizer_state(optimizer, state["optimizer"])
        load_learning_rate_state(ctx.config, learning_rate, state["lr_scheduler"])
    return Progress(state["iteration"], state["args"]["consumed_train_samples"],
                    state["args"]["consumed_valid_samples"])


def check_same_model(ctx: Context, saved: Mapping, padded_vocab_size: int, path: Path) -> None:
    """Raise UserError if `saved`, the arguments in the file `path`, are those of another model."""
    given = {**dataclasses.asdict(ctx.config), "padded_vocab_size": padded_vocab_size}
    # A checkpoint from before a flag existed has that flag's default.
    saved = {**dataclasses.asdict(Config()), **saved}
    for name in MUST_MATCH:
        if saved.get(name) != given[name]:
            raise UserError(f"{mismatch(name, saved, given)} Nearest: "
                            f"{as_flag(name, saved.get(name))}. [{path}]")
    check_vocabulary(ctx, saved, given, path)


def mismatch(name: str, saved: Mapping, given: Mapping) -> str:
    """Return Megatron-LM's sentence about an argument that differs."""
    return (f"{name} value from checkpoint ({saved.get(name)}) is not equal to the input argument "
            f"value ({given[name]}).")


def as_flag(name: str, value: object) -> str:
    """Return the words on the command line that give a field this value."""
    flag = table_of(Config)[name]
    words = flag.off[0] if flag.off else flag.spelling
    if value == flag.default and (value is None or isinstance(value, bool)):
        return f"leave out {words}"
    return words if isinstance(value, bool) else f"{words} {value}"


def shown_tokenizer(saved: Mapping) -> str:
    """Return the flag that names the vocabulary of a checkpoint's arguments."""
    if saved["tokenizer_model"]:
        return f"--tokenizer-model {saved['tokenizer_model']}"
    return f"--vocab-file {saved['vocab_file'] or 'of the run that saved'}"


def check_vocabulary(ctx: Context, saved: Mapping, given: Mapping, path: Path) -> None:
    """Raise UserError if no vocabulary has both numbers of rows; warn if only the padding differs.

    n tokens are padded to the next multiple of m, so n is in (rows - m, rows].
    """
    there, here = (args.get("padded_vocab_size") for args in (saved, given))
    if there == here:
        return
    multiple, own = (args["make_vocab_size_divisible_by"] * args["tensor_model_parallel_size"]
                     for args in (saved, given))
    if not isinstance(there, int) or min(there, here) <= max(there - multiple, here - own):
        raise UserError(
            f"{mismatch('padded_vocab_size', saved, given)} No vocabulary has both sizes. Nearest: "
            f"{shown_tokenizer(saved)}. [{path}]")
    divisor, rest = divmod(multiple, given["tensor_model_parallel_size"])
    ctx.print_rank_0(
        f"WARNING: the word embedding has {here} rows, and {there} in the checkpoint: rows of "
        f"padding are {'added' if here > there else 'dropped'}, which changes the loss slightly"
        + ("" if rest else f"; --make-vocab-size-divisible-by {divisor} avoids it"))

"""Read a trained model without the state of its training, to generate text or to convert it.

`SavedModel` stands for a model on the disk, whatever its format: the trainer's own, of any layout,
or another one that a program above this package reads. No rank reads more of it than its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from minimegatron.arguments import Config
from minimegatron.arguments.table import Model, ModernBlock
from minimegatron.checkpoint.checksums import find_problems
from minimegatron.checkpoint.files import SavedFiles
from minimegatron.checkpoint.load import read_tracker
from minimegatron.checkpoint.reshard import partition
from minimegatron.checkpoint.save import TRACKER, read_folder
from minimegatron.context import Context
from minimegatron.device.device import CpuDevice
from minimegatron.errors import UserError
from minimegatron.grid import Group
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import ParamSpec, partition_of

WORDS = "embedding.word_embeddings.weight"


@dataclass(frozen=True)
class SavedModel:
    """A trained model on the disk, in any format.

    Attributes:
        source: the folder, for messages.
        args: the trainer's arguments that describe it, and its tokenizer.
        rows: rows of its word embedding.
        fewest: the smallest vocabulary that is padded to so many rows.
        dtype: dtype of its parameters.
        part: returns a tensor-parallel rank's partition of a parameter, given the group, and the
            parameter's name and spec.
    """

    source: Path
    args: Mapping[str, Any]
    rows: int
    fewest: int
    dtype: torch.dtype
    part: Callable[[Group, str, ParamSpec], torch.Tensor]


def intact_files(path: Path) -> SavedFiles:
    """Return the files of a checkpoint, without the optimizer's, after comparing their checksums.

    Args:
        path: the folder that --save named, or an iter_ folder in it.

    Raises UserError if there is no checkpoint, or if a file is missing or corrupted.
    """
    folder = path
    if not path.is_dir():
        raise UserError(f"there is no folder {path}: give the one that --save named, or an iter_ "
                        "folder in it")
    if not path.name.startswith("iter_"):
        iteration = read_tracker(path / TRACKER)
        if not isinstance(iteration, int):
            raise UserError(iteration or f"{path} has no {TRACKER}: give the folder that --save "
                            "named, or an iter_ folder in it")
        folder = read_folder(path, iteration)
    if wrong := find_problems(folder):
        raise UserError(f"{folder}: {'; '.join(wrong)}")
    files = SavedFiles(folder, with_optimizer=False)
    files.check_names()
    return files


def saved_model(folder: Path) -> SavedModel:
    """Return the model in a checkpoint of the trainer, of any layout. Raises UserError."""
    files = intact_files(folder)
    args, layout = files.first["args"], files.layout
    multiple = args["make_vocab_size_divisible_by"] * layout.tp
    return SavedModel(folder, args, layout.rows, layout.rows - multiple + 1,
                      files.model(0, 0)[WORDS].dtype,
                      lambda tp, name, spec: partition(files, tp, name, spec))


def whole_model(source: Path, args: Mapping[str, Any], weights: Mapping[str, torch.Tensor]
                ) -> SavedModel:
    """Return a model with whole parameters, in memory or mapped, under the trainer's names."""
    def part(tp: Group, name: str, spec: ParamSpec) -> torch.Tensor:
        full = weights[name]
        if missing := spec.full_shape[0] - len(full):  # rows of padding, which are never chosen
            full = torch.cat([full, full[-1:].expand(missing, -1)])
        blocks = full.chunk(spec.blocks) if spec.blocks > 1 else [full]
        parts = [partition_of(block, spec.partition_dim, tp) for block in blocks]
        # A copy, so that no view keeps the whole parameter in memory.
        return torch.cat(parts) if len(parts) > 1 or tp.size > 1 else parts[0]

    return SavedModel(source, args, len(weights[WORDS]), 1, weights[WORDS].dtype, part)


def model_config(args: Mapping[str, Any], dtype: torch.dtype = torch.float32, **more: object
                 ) -> Config:
    """Return the configuration of a model on one rank, from a checkpoint's arguments and `more`."""
    names = [each.name for topic in (Model, ModernBlock) for each in fields(topic)]
    given = {name: args[name] for name in names if args.get(name) is not None}
    given["use_flash_attn"] = True  # so that the layers hold no mask
    return replace(Config(), **given, layers_per_chunk=(args["num_layers"],),
                   fp16=dtype == torch.float16, bf16=dtype == torch.bfloat16, **more)


class ShapesOnly(CpuDevice):
    """Parameters have shapes, and no memory."""

    has_values = False
    torch_device = torch.device("meta")


def empty_stage(ctx: Context, rows: int) -> Stage:
    """Return the whole model of a configuration, whose parameters have no memory yet."""
    return Stage(replace(ctx, device=ShapesOnly()), rows, range(ctx.config.num_layers))

"""Load a checkpoint in another layout: assemble this rank's part from the saved ranks' files.

A parameter's name says which saved stage holds it, because layers are numbered through the whole
model. Its spec (model/parameters.py) says how the tensor-parallel ranks partition it. So every
slice of this rank's part is a slice of a saved one, and is copied bit for bit. Adam's moments and
the master weights have the shapes and names of their parameters. Everything else in a file (the
step, the loss scale, the progress) is the same on all ranks.

Only a checkpoint of another layout imports this file.
"""

from __future__ import annotations

import torch
from torch import nn

from minimegatron.checkpoint.files import SavedFiles
from minimegatron.checkpoint.optimizer_state import MAIN, SHARDED
from minimegatron.checkpoint.save import chunks_by_key
from minimegatron.context import Context
from minimegatron.grid import Group
from minimegatron.model.parameters import ParamSpec, named_param_specs
from minimegatron.optim import Optimizer

VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight")


def assemble(ctx: Context, files: SavedFiles, model: nn.Module, optimizer: Optimizer) -> dict:
    """Return the content that this rank's file would have, had this layout saved the checkpoint.

    Args:
        ctx: has this rank's place in the grid.
        files: of the other layout.
        model: this rank's chunks.
        optimizer: knows which parameters are trained.

    Raises UserError, KeyError, or TypeError if a file is not what the layout promises.
    """
    first, tp, chunked = files.first, ctx.grid.tp, isinstance(model, nn.ModuleList)
    state = {name: value for name, value in first.items() if not name.startswith("model")}
    for key, chunk in chunks_by_key(model).items():
        state[key] = {name: partition(files, tp, name, spec)
                      for name, spec in named_param_specs(chunk).items()}
        state[key] |= fp8_histories(files, tp, chunk)
    if files.with_optimizer and "optimizer" in first:
        saved = files.state(counterpart(files, tp), 0)["optimizer"]
        state["optimizer"] = {name: value for name, value in saved.items() if name not in SHARDED}
        for kind in (kind for kind in SHARDED if kind in saved):
            state["optimizer"][kind] = {
                name: partition(files, tp, name.partition(".")[2] if chunked else name, spec, kind)
                for name, spec in optimizer.ddp.specs.items()}
    return state


def partition(files: SavedFiles, tp: Group, name: str, spec: ParamSpec, kind: str | None = None
              ) -> torch.Tensor:
    """Return this rank's partition of a parameter, or of one of its optimizer states.

    Args:
        files: of the other layout.
        tp: this rank's tensor-parallel group.
        name: the parameter's, inside its chunk.
        spec: the parameter's.
        kind: the optimizer state's; None for the parameter.
    """
    dim, ranks, saved = spec.partition_dim, files.layout.tp, list(spec.full_shape)
    if name in VOCABULARY:
        saved[0] = files.layout.rows
    if dim is None:  # every rank saved a copy
        return files.tensor(counterpart(files, tp), name, kind, saved)
    saved[dim] //= ranks
    shape = spec.shape(tp)
    size, width = shape[dim] // spec.blocks, saved[dim] // spec.blocks  # of a block, here and there
    start, out = tp.index * size, None
    for at in range(min(start // width, ranks - 1), min(-(-(start + size) // width), ranks)):
        part = files.tensor(at, name, kind, saved)
        out = part.new_zeros(shape) if out is None else out
        low, high = max(start, at * width), min(start + size, (at + 1) * width)
        blocks = zip(out.chunk(spec.blocks, dim), part.chunk(spec.blocks, dim), strict=True)
        for new, old in blocks if low < high else ():
            new.narrow(dim, low - start, high - low).copy_(
                old.narrow(dim, low - at * width, high - low))
    end = max(ranks * width - start, 0)
    if name in VOCABULARY and kind in (None, MAIN) and end < size:
        # The mean row's logit is the mean logit, so n rows of padding take at most n / V of the
        # probability (Jensen's inequality). Rows of zeros could take more.
        rows = torch.cat([files.tensor(at, name, kind, saved) for at in range(ranks)])
        out[end:] = rows.float().mean(0)
    return out


def counterpart(files: SavedFiles, tp: Group) -> int:
    """Return the saved tensor-parallel rank whose partition begins where this rank's begins."""
    return tp.index * files.layout.tp // tp.size


def fp8_histories(files: SavedFiles, tp: Group, chunk: nn.Module) -> dict[str, torch.Tensor]:
    """Return the amax histories and scales of a chunk's layers; empty if none were saved.

    Amaxes are all-reduced over the tensor-parallel ranks, so every rank saved the same. A history
    has the same number of columns for every layer of its chunk, in order.
    """
    found: dict[str, torch.Tensor] = {}
    layout, at = files.layout, counterpart(files, tp)
    for direction in () if chunk.fp8 is None else chunk.fp8.histories:
        for buffer in ("amax", "scale"):
            key, columns = f"fp8.histories.{direction}.{buffer}", []
            for number in map(int, chunk.decoder.layers):
                virtual = layout.virtual_stage(f"decoder.layers.{number}")
                saved = files.model(at, virtual)
                if key not in saved:
                    return {}
                width = saved[key].shape[-1] // layout.layers[virtual]
                place = number - sum(layout.layers[:virtual])
                columns.append(saved[key].narrow(-1, place * width, width))
            found[key] = torch.cat(columns, -1)
    return found

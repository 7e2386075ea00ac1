"""Open a checkpoint of my_trainer.py to generate text, with the student's files of lab 08."""

from __future__ import annotations

from pathlib import Path

import torch

from lab.mytrainer import pieces
from lab.mytrainer.checkpoints import KINDS, LAYOUT, ShardFiles, latest, read_layout
from labcore.errors import LabError
from minimegatron.checkpoint.saved_model import SavedModel, whole_model
from minimegatron.errors import UserError

PREFIX = "stage."  # of the names in lab.mytrainer.model.GPT


def open_own(root: Path) -> SavedModel:
    """Return the model that my_trainer.py saved last, in fp32, all of it in memory.

    shards.py knows where each element is, and reshard.py assembles one shard with everything.
    Raises UserError if the checkpoint is damaged, or one of these files is missing.
    """
    folder = latest(root)
    saved = read_layout(folder)
    if "text" not in saved:
        raise UserError(f"{folder / LAYOUT} is from before text could be generated from it: save "
                        "again, with --load and one more step")
    make, reshard = (getattr(piece(name), made) for name, made in (
        ("shards", "ShardLayout"), ("reshard", "reshard")))
    shapes = [[torch.Size(saved["shapes"][name]) for name in names] for names in saved["units"]]

    def units(ranks: int) -> list:
        return [(names, make(sizes, ranks))
                for names, sizes in zip(saved["units"], shapes, strict=True)]

    there, whole = units(saved["ranks"]), units(1)
    files = ShardFiles(folder, there, saved["crc32"])
    shards = reshard(files.reader(KINDS[0]), there, whole, 0)
    weights = {name.removeprefix(PREFIX): shard[part].view(shape)
               for (names, layout), sizes, shard in zip(whole, shapes, shards, strict=True)
               for name, shape, part in zip(names, sizes, layout.parts(0), strict=True)}
    if "embedding.weight" in weights:  # your own Llama
        from lab.mytrainer.own_checkpoints import trainer_weights

        weights = trainer_weights(weights, saved["flags"])
    return whole_model(root, {**saved["flags"], **saved["text"]}, weights)


def piece(name: str) -> object:
    """Return the module of a piece. Raises UserError if the student has not written it."""
    try:
        module = pieces.load(name)
    except LabError as error:
        raise UserError(str(error)) from error
    if module is None:
        raise UserError(f"a checkpoint of my_trainer.py needs {pieces.PIECES[name].shown}, which "
                        f"you write in {pieces.PIECES[name].lab}")
    return module

"""Real gradients and real failures of a small GPT in 16 bits, for lab 05."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lab.mytrainer import flags, gain
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.vocabulary import Vocabulary
from minimegatron.grid import GROUPS, Grid, Group
from minimegatron.initialize import choose_device

if TYPE_CHECKING:
    from torch import nn

SMALL = ("--device cpu --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
         "--max-position-embeddings 256 --attention-dropout 0 --hidden-dropout 0 --lr 1e-3 "
         "--micro-batch-size 2 --global-batch-size 2 --train-iters 100 --eval-iters 0 "
         "--split 949,50,1 ")


def small_gpt(dtype: torch.dtype, more: str = "") -> tuple[nn.Module, Iterator[MicroBatch]]:
    """Return the trainer's small GPT in a dtype, which maps a micro-batch to its mean loss, and
    an iterator over micro-batches of the workspace's text.

    Args:
        dtype: of the parameters.
        more: flags of my_trainer.py that replace those of SMALL.
    """
    trainer = runpy.run_path(str(gain.SCRIPT), run_name="my_trainer")
    with (tempfile.TemporaryDirectory() as cache,
          contextlib.redirect_stdout(io.StringIO())):  # the data set is described there
        config = flags.parse([*SMALL.split(), *more.split(), *gain.text_flags(),
                              "--data-cache-path", cache])
        trainer["join_ranks"](config)
        try:
            device, _ = choose_device(config, 0)
            alone = Group((0,), 0, None)
            ctx = Context(config, Grid(0, 1, **dict.fromkeys(GROUPS, alone)), device)
            tokenizer = Vocabulary(config.vocab_file, config.merge_file)
            text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
        finally:
            dist.destroy_process_group()
    data, size = Batches(ctx, text, tokenizer.eod, "training"), config.micro_batch_size
    model = trainer["GPT"](ctx, 4096).to(dtype)
    return model, (data.micro_batch(range(size * step, size * (step + 1)), step, train=True)
                   for step in range(config.train_iters))

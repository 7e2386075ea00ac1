"""Build a small GPT in any dtype, and record its gradients, for lab 05."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lab.mytrainer import defaults, flags, gain
from lab.mytrainer.model import GPT
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.tokenizer import vocabulary_of
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.grid import GROUPS, Grid, Group
from minimegatron.initialize import choose_device

if TYPE_CHECKING:
    from torch import nn

SMALL = ("--device cpu --num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 128 "
         "--max-position-embeddings 128 --attention-dropout 0 --hidden-dropout 0 --lr 1e-3 "
         "--train-iters 100 --eval-iters 0 "
         "--split 949,50,1")


def build(dtype: torch.dtype, samples: int = 4) -> tuple[nn.Module, Iterator[MicroBatch]]:
    """Return the trainer's GPT with the settings of SMALL, and micro-batches of real text.

    The model maps a micro-batch to its mean loss (fp32, one element). Parameters, activations, and
    gradients have the given dtype. There are 100 micro-batches, the same in every call.

    Args:
        dtype: of the model.
        samples: of each micro-batch, of 128 tokens each.

    Raises:
        LabError: the workspace has no text.
    """
    with (tempfile.TemporaryDirectory() as cache,
          contextlib.redirect_stdout(io.StringIO())):  # the data set is described there
        config = flags.parse([*SMALL.split(), *gain.text_flags(), "--data-cache-path", cache,
                              "--micro-batch-size", str(samples),
                              "--global-batch-size", str(samples)])
        defaults.join_ranks(config)  # the data set is built with a barrier
        try:
            device, _ = choose_device(config, 0)
            alone = Group((0,), 0, None)
            ctx = Context(config, Grid(0, 1, **dict.fromkeys(GROUPS, alone)), device)
            tokenizer = vocabulary_of(config)
            text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
        finally:
            dist.destroy_process_group()
    vocab_size = pad_vocab_size(tokenizer.vocab_size, config.make_vocab_size_divisible_by, 1)
    data, size = Batches(ctx, text, tokenizer.eod, "training"), config.micro_batch_size
    return GPT(ctx, vocab_size).to(dtype), (
        data.micro_batch(range(size * step, size * (step + 1)), step, train=True)
        for step in range(config.train_iters))


def gradients(micro_batches: int) -> dict[str, torch.Tensor]:
    """Return the gradients of the first micro-batch in fp32, by where they are in the model.

    Args:
        micro_batches: of the step; the loss is divided by their number.
    """
    model, batches = build(torch.float32)
    stage, found = model.stage, {}
    layers = {f"layer {number}": layer
              for number, layer in enumerate(stage.decoder.layers.values(), 1)}

    def watch(name: str, output: torch.Tensor) -> torch.Tensor:
        output.register_hook(lambda gradient: found.update({name: gradient.detach().clone()}))
        return output

    stage.embedding.register_forward_hook(lambda *made: watch("embedding, output", made[-1]))
    for name, layer in layers.items():
        layer.register_forward_hook(lambda *made, name=name: watch(f"{name}, output", made[-1]))
    logits = stage.logits
    stage.logits = lambda x: watch("logits", logits(x))
    (model(next(batches)) / micro_batches).backward()
    for name, module in {"embedding": stage.embedding, **layers}.items():
        found[f"{name}, weights"] = torch.cat([
            parameter.grad.flatten() for parameter in module.parameters()])
    return found

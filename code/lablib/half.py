"""Train a small GPT in 16 bits for real, and draw what becomes of its gradients, for lab 05."""

from __future__ import annotations

import contextlib
import io
import runpy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from lab.mytrainer import flags, gain
from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.vocabulary import Vocabulary, pad_vocab_size
from minimegatron.grid import GROUPS, Grid, Group
from minimegatron.initialize import choose_device
from pipeline_schedules import Drawing

if TYPE_CHECKING:
    from torch import nn

SMALL = ("--device cpu --num-layers 2 --hidden-size 128 --num-attention-heads 4 --seq-length 128 "
         "--max-position-embeddings 128 --attention-dropout 0 --hidden-dropout 0 --lr 1e-3 "
         "--micro-batch-size 4 --global-batch-size 4 --train-iters 100 --eval-iters 0 "
         "--split 949,50,1")
STYLES = ("-", "--", "-.", ":")  # so that color is not the only difference


def small_gpt(dtype: torch.dtype) -> tuple[nn.Module, Iterator[MicroBatch]]:
    """Return the trainer's GPT with the settings of SMALL, and micro-batches of real text.

    The model maps a micro-batch to its mean loss (fp32, one element). Parameters, activations, and
    gradients have the given dtype. There are 100 micro-batches, the same in every call.

    Raises:
        LabError: the workspace has no text.
    """
    trainer = runpy.run_path(str(gain.SCRIPT), run_name="my_trainer")
    with (tempfile.TemporaryDirectory() as cache,
          contextlib.redirect_stdout(io.StringIO())):  # the data set is described there
        config = flags.parse([*SMALL.split(), *gain.text_flags(), "--data-cache-path", cache])
        trainer["join_ranks"](config)  # the data set is built with a barrier
        try:
            device, _ = choose_device(config, 0)
            alone = Group((0,), 0, None)
            ctx = Context(config, Grid(0, 1, **dict.fromkeys(GROUPS, alone)), device)
            tokenizer = Vocabulary(config.vocab_file, config.merge_file)
            text, _, _ = build_datasets(ctx, tokenizer.vocab_size)
        finally:
            dist.destroy_process_group()
    vocab_size = pad_vocab_size(tokenizer.vocab_size, config.make_vocab_size_divisible_by, 1)
    data, size = Batches(ctx, text, tokenizer.eod, "training"), config.micro_batch_size
    return trainer["GPT"](ctx, vocab_size).to(dtype), (
        data.micro_batch(range(size * step, size * (step + 1)), step, train=True)
        for step in range(config.train_iters))


def gradients(micro_batches: int) -> dict[str, torch.Tensor]:
    """Return the gradients of the first micro-batch in fp32, by where they are in the model.

    Args:
        micro_batches: of the step; the loss is divided by their number.
    """
    model, batches = small_gpt(torch.float32)
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


def draw_losses(runs: Mapping[str, Sequence[float]]) -> Drawing:
    """Plot the loss of each step, one line per run; a loss that is NaN ends its line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    described = []
    for number, (name, losses) in enumerate(runs.items()):
        finite = [loss for loss in losses if loss == loss]
        label = name if len(finite) == len(losses) else f"{name}: NaN from step {len(finite) + 1}"
        axes.plot(range(1, len(finite) + 1), finite, label=label, color=f"C{number}",
                  linestyle=STYLES[number % len(STYLES)],
                  marker="x" if len(finite) < len(losses) else "")
        described.append(f"{label}, from {finite[0]:.2f} to {finite[-1]:.2f}")
    axes.set(xlabel="step", ylabel="loss", title="Training loss (real, on the CPU)")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Training loss over steps: " + "; ".join(described) + ".")


def draw_histograms(counts: Mapping[str, Sequence[int]], lowest: int, smallest: int) -> Drawing:
    """Draw histograms of gradients over their exponents, one row per layer.

    Args:
        counts: for each layer, the number of gradients with each exponent.
        lowest: the exponent of the first count.
        smallest: the exponent of the smallest number above 0 of a dtype, which is marked.
    """
    from matplotlib.figure import Figure

    rows = {name: torch.tensor([float(count) for count in row]) for name, row in counts.items()}
    table = torch.stack([row / row.sum() for row in rows.values()])
    figure = Figure(figsize=(8, 1.3 + 0.28 * len(rows)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(table, aspect="auto", cmap="Blues",
                        extent=(lowest, lowest + table.shape[1], len(rows) - 0.5, -0.5))
    axes.axvline(smallest, color="C3", label=f"$2^{{{smallest}}}$, the smallest fp16 number")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set(xlabel="exponent of the gradient (base 2)")
    axes.legend(loc="upper right")
    figure.colorbar(image, ax=axes, label="share of the layer")
    below = (table * (torch.arange(table.shape[1]) + lowest < smallest)).sum(1)
    return Drawing(figure, "Shares of gradients by exponent, one row per layer. Below "
                   f"2**{smallest}: " + ", ".join(f"{name} {share:.0%}" for name, share in
                                                  zip(rows, below.tolist(), strict=True)) + ".")


def draw_errors(errors: Mapping[str, Sequence[float]]) -> Drawing:
    """Plot the relative error of an accumulated gradient over the number of micro-batches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for number, (name, row) in enumerate(errors.items()):
        axes.plot(range(1, len(row) + 1), row, label=name, color=f"C{number}",
                  linestyle=STYLES[number % len(STYLES)])
    axes.set_yscale("log")
    axes.set(xlabel="micro-batches accumulated", ylabel="relative error of the sum")
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Relative error of the accumulated gradient: " + "; ".join(
        f"in {name} {row[0]:.1e} after the first micro-batch and {row[-1]:.1e} after the last"
        for name, row in errors.items()) + ".")

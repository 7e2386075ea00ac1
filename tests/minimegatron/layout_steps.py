"""Steps of the trainer in many layouts, one after another in the same rank processes.

torchrun --nproc_per_node 4 layout_steps.py STEPS CASE ..      CASE: the flags of one run, quoted

Every rank prints a JSON line per case: losses and norms to the last digit, what the log shows.
"""

from __future__ import annotations

import json
import shlex
import sys

import torch
import torch.distributed as dist

from minimegatron.arguments import parse_arguments
from minimegatron.batches import Batches
from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.device import Device
from minimegatron.grid import make_grid
from minimegatron.main import leave
from minimegatron.training import Trainer

VOCABULARY = 128  # padded alike in every layout: the loss depends on it
FLAGS = ("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
         "--max-position-embeddings 24 --micro-batch-size 2 --global-batch-size 8 --lr 1e-2 "
         "--lr-warmup-iters 1 --train-iters 100 --data-path x --vocab-file x --merge-file x "
         "--log-params-norm --log-num-zeros-in-grad ")


def data(count: int, length: int) -> list[dict]:
    """Samples that repeat themselves, so that there is something to learn."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randint(VOCABULARY, (count, 1), generator=generator)
    text = (start + torch.arange(length + 1) * torch.arange(1, count + 1)[:, None]) % VOCABULARY
    return [{"text": row.numpy()} for row in text]


def steps(ctx: Context, count: int, defer: bool = False) -> dict:
    """Train; returns the loss (mean over replicas) and the norms of every step.

    defer: weight gradients wait until the end of the backward pass, as under zero bubble.
    """
    trainer = Trainer(ctx, VOCABULARY, started=0.0)
    batch, gradients = ctx.config.global_batch_size, trainer.optimizer.gradients
    source = Batches(ctx, data(batch * count, ctx.config.seq_length), eod=0, name="training")
    out: dict = {"loss": [], "norm": [], "params": [], "zeros": []}
    finish = gradients.finish
    if defer:
        gradients.defer_weights = True
        gradients.finish = lambda replicas: (gradients.drain(), finish(replicas))
    for _ in range(count):
        progress = trainer.progress
        loss, norm = trainer.step(source.step(progress.consumed_train_samples, progress.iteration))
        loss = loss / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        for name, value in (("loss", loss), ("norm", norm),
                            ("params", trainer.optimizer.model_norm(trainer.optimizer.weights)),
                            ("zeros", trainer.optimizer.num_zeros())):
            out[name].append(ctx.read(value))
    copied = [(name, weight) for name, weight in trainer.optimizer.named if weight.split is None]
    out["copies"] = {name: weight.detach().double().sum().item() for name, weight in copied}
    out["rank"], out["tp"], out["dp"] = ctx.grid.rank, ctx.grid.tp.index, ctx.grid.dp.index
    return out


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for case in sys.argv[2:]:
        defer = "DEFER" in case
        config = parse_arguments(shlex.split(FLAGS + case.replace("DEFER", "")))
        grid = make_grid(1, config.data_parallel_size, config.tensor_model_parallel_size, "gloo")
        result = steps(Context(config, grid, Device()), int(sys.argv[1]), defer)
        emit(json.dumps({"case": case, **result}))
    leave(0)


if __name__ == "__main__":
    main()

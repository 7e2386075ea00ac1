"""The inputs of both trainers: flags, weights drawn by name, and samples."""

from __future__ import annotations

import torch
import torch.distributed as dist

from minimegatron.arguments import Config, parse_arguments
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.device import CpuDevice
from minimegatron.grid import make_grid
from minimegatron.training import Trainer

VOCABULARY, STEPS = 128, 5
FLAGS = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
         "--max-position-embeddings 40 --micro-batch-size 4 --global-batch-size 16 "
         "--attention-dropout 0 --hidden-dropout 0 --train-iters 100 --lr 1e-2 "
         "--lr-decay-style constant --data-path x --vocab-file x --merge-file x ")
CASES = {
    "as usual": "",
    "clipped, decayed": "--clip-grad 0.05 --weight-decay 0.5 --adam-beta2 0.95 --adam-eps 1e-5",
    "other widths": "--kv-channels 10 --ffn-hidden-size 96 --layernorm-epsilon 1e-3",
    "large weights": "--init-method-std 0.2 --clip-grad 0",
}


def configuration(case: str) -> Config:
    return parse_arguments([*FLAGS.split(), *CASES[case].split()], {})


def samples(config: Config) -> list[dict]:
    """Enough for all steps: {"text": int64 [s + 1]}."""
    generator = torch.Generator().manual_seed(7)
    shape = STEPS * config.global_batch_size, config.seq_length + 1
    return [{"text": row.numpy()} for row in torch.randint(VOCABULARY, shape, generator=generator)]


def trainer_of(case: str) -> Trainer:
    """Our trainer alone, before its first step."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return Trainer(Context(configuration(case), make_grid({}, "gloo"), CpuDevice()),
                   VOCABULARY, started=0.0)


def our_trace(case: str) -> dict[str, list[float]]:
    """{"loss", "norm"} of every step."""
    trainer = trainer_of(case)
    source = Batches(trainer.ctx, samples(trainer.config), eod=0, name="training")
    out: dict[str, list[float]] = {"loss": [], "norm": []}
    for _ in range(STEPS):
        progress = trainer.progress
        loss, norm = trainer.step(source.step(progress.consumed_train_samples, progress.iteration))
        out["loss"].append(float(loss))
        out["norm"].append(float(norm))
    return out

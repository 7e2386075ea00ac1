"""Three steps of the trainer on a virtual GPU with a ledger, in a process of their own."""

from __future__ import annotations

import torch
import torch.distributed as dist

from layout_estimator.estimate import Estimator
from layout_estimator.planner import make_plan
from minimegatron.arguments import parse_arguments
from minimegatron.arguments.parse import parse_estimate
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.grid import make_grid
from minimegatron.initialize import choose_device
from minimegatron.training import Trainer
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.measures import measure
from virtualgpu.export.owners import storages

VOCABULARY = 1024
FLAGS = ("--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 "
         "--max-position-embeddings 128 --micro-batch-size 4 --global-batch-size 4 --lr 1e-4 "
         "--train-iters 9 --eval-iters 0 --data-path x --vocab-file x --merge-file x "
         "--device virtual:a100")


def run(flags: str) -> dict:
    """Return the ledger's figures, the number of parameters, and --estimate's prediction."""
    config = parse_arguments([*FLAGS.split(), *flags.split()])
    device, _ = choose_device(config, 0)
    gpu = device.gpu
    gpu.memory.split_always()  # as the estimate counts memory
    try:
        device.connect()
        ledger = Ledger(gpu)
        ledger.start()
        ctx = Context(config, make_grid({}, device.backend), device)
        trainer = Trainer(ctx, VOCABULARY, started=0.0)
        text = torch.arange(config.seq_length + 1).numpy()
        source = Batches(ctx, [{"text": text}] * 12, eod=0, name="test")
        for step in range(3):
            device.begin_step()
            trainer.step(source.step(4 * step, step))
        optimizer = trainer.optimizer
        for tensor in (*optimizer.moments.values(), optimizer.main_params, optimizer.main_grads):
            for key in storages(tensor):
                ledger.label(key, "optimizer state")
        ledger.stop()
        found = measure(ledger)
        parameters = sum(p.numel() for p in trainer.model.parameters())
    finally:
        gpu.__exit__(None, None, None)
        dist.destroy_process_group()
    estimator = Estimator(gpu.card, None, 1)
    config = parse_estimate([*FLAGS.split(), *flags.split(), "--estimate",
                             "--vocab-size", str(VOCABULARY)])
    planned = make_plan(config, estimator, estimator.estimate(config, VOCABULARY))
    return {"found": found, "parameters": parameters, "planned": planned}

"""One data-parallel step of the trainer on tensors without values, over a group without a wire.

torchrun --nproc_per_node 2 virtual_step.py FLAGS

Every rank prints one JSON line: its clock, what travelled, the step's shapes.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import Backend
from torch.futures import Future

from minimegatron.arguments import parse_arguments
from minimegatron.batches import Batches
from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.device import MetaDevice
from minimegatron.grid import make_grid
from minimegatron.main import leave
from minimegatron.step_log import StepLog
from minimegatron.training import Trainer

SECONDS_PER_BYTE = 1e-9
clock = [0.0]
sent = [0]


class Done(dist.Work):
    def __init__(self, result: list[torch.Tensor]) -> None:
        super().__init__()
        self.future: Future = Future()
        self.future.set_result(result)

    def wait(self, timeout: object = None) -> bool:
        return True

    def get_future(self) -> Future:
        return self.future


class ClockGroup(dist.ProcessGroup):
    """Moves clocks, not data: an all-reduce ends when the last rank came, plus the transfer."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: object) -> None:
        super().__init__(rank, size)
        self.store, self.messages = store, 0

    def allreduce(self, tensors: list[torch.Tensor], options: object = None) -> Done:
        for tensor in tensors:
            if not tensor.is_meta:
                raise RuntimeError("a tensor with values in the modelled group")
        self.messages += 1
        key = f"allreduce{self.messages}"
        self.store.set(f"{key}/{self.rank()}", repr(clock[0]))
        arrived = max(float(self.store.get(f"{key}/{r}")) for r in range(self.size()))
        size = sum(tensor.nbytes for tensor in tensors)
        sent[0] += size
        clock[0] = arrived + size * SECONDS_PER_BYTE
        return Done(tensors)

    def getBackendName(self) -> str:
        return "clock"


class ClockDevice(MetaDevice):
    def now(self) -> float:
        return clock[0]


def main() -> None:
    Backend.register_backend("clock", ClockGroup, devices=["meta"])
    config = parse_arguments(sys.argv[1:])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ctx = Context(config, make_grid(1, config.data_parallel_size, 1, "clock"),
                  ClockDevice("clock"))
    trainer = Trainer(ctx, vocab_size=512, started=0.0)
    data = [{"text": torch.arange(config.seq_length + 1).numpy()}] * config.global_batch_size
    batches = Batches(ctx, data, eod=0, name="training").step(0, 0)
    clock[0] = float(rank)  # the ranks come at different times
    loss, norm = trainer.step(batches)
    log = StepLog(ctx, trainer.timers, trainer.board, trainer.optimizer,
                  trainer.vocab_size, trainer.live)
    log.add(loss, norm, clock[0])
    log.report(trainer.progress, torch.tensor(1e-3))
    control = torch.tensor([rank + 1.0])
    dist.all_reduce(control)  # control traffic still carries values
    emit(json.dumps({
        "rank": rank, "clock": clock[0], "sent": sent[0], "control": control[0].item(),
        "loss": ctx.read(loss), "loss_is_meta": loss.is_meta, "norm_is_meta": norm.is_meta,
        "parameters": trainer.optimizer.weights.numel(),
        "steps": trainer.progress.iteration}))
    leave(0)  # as the trainer does: the interpreter's own clean-up may abort under gloo's threads


if __name__ == "__main__":
    main()

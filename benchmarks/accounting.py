"""Cost of accounting for a run: CPU time per operation with a ledger and without one.

python benchmarks/accounting.py

A step of a small GPT with AdamW on a virtual A100, in turn with and without, after a step in which
operations are planned. Prints the shortest of 15 and their ratio, which should stay below 1.10.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.virtualgpu.plain_gpt import Gpt
from virtualgpu.core.cards import CARDS
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export.ledger import Ledger

ROUNDS = 15


def program() -> Callable[[], None]:
    model = Gpt(6, 256, 8, 128, 1024, True, "meta")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.zeros(4, 128, dtype=torch.int64, device="meta")

    def step() -> None:
        model(tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def main() -> None:
    times: dict[bool, list[float]] = {False: [], True: []}
    with VirtualGpu(CARDS["a100-80gb"]) as gpu:
        step, ledger = program(), Ledger(gpu)
        for turn in range(2 * ROUNDS + 2):
            accounted = turn % 2 == 1
            before = ledger.operations
            if accounted:
                ledger.start()
            start = time.process_time()
            step()
            seconds = time.process_time() - start
            if accounted:
                ledger.stop()
                operations = ledger.operations - before
            if turn > 1:  # in the first of each kind, operations are planned
                times[accounted].append(seconds)
    without, accounted = (1e6 * min(times[kind]) / operations
                          for kind in (False, True))
    print(f"{operations} operations a step: {without:.2f} us each without a ledger, "
          f"{accounted:.2f} us with one, ratio {accounted / without:.3f}")


if __name__ == "__main__":
    main()

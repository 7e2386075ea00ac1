"""Train GPT with DeepSpeed's pipeline: 1F1B with a flush, one process for each stage.

    srun --nodes=1 --ntasks=4 python code/examples/pipe_dream.py            # [4, 3, 3, 4]
    srun --nodes=2 --ntasks=2 python code/examples/pipe_dream.py --balance parameters
    deepspeed --num_accelerators 2 code/examples/pipe_dream.py --balance 7,7
    python code/examples/pipe_dream.py --show-schedule 4,8                  # stages, micro-batches

The order of work is PipeDream's (Narayanan et al. 2019): once the pipeline is full, each stage
alternates one forward and one backward. DeepSpeed's `TrainSchedule` flushes after every batch, so
there is one version of the weights, and no gradient is of an older one. What the batches are and
how the weights are updated is in pipe_dream.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import options
import setting
from gpt_layers import NO_LABEL, Block, Embedding, Head, Size, loss_sum
from labcore.errors import LabError
from lablib.saved import SavedTensors
from minimegatron.errors import emit

BALANCE = "4,3,3,4"
METHODS = ("parameters", "uniform", "type:Block")


class Ends(nn.Module):
    """Embedding and head, which share a matrix.

    DeepSpeed ties whole modules: the first and the last stage both build this one, use the half
    that is theirs, and add up the gradients of the matrix before each step.
    """

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding, self.head = Embedding(size), Head(size)

    def first(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens)

    def last(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x, self.embedding.words.weight)


def specifications(size: Size) -> list[Any]:
    """The layers as recipes: a stage builds its own only, so no process holds the whole model."""
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    def end(use: Any) -> TiedLayerSpec:
        return TiedLayerSpec("ends", Ends, size, forward_fn=use,
                             tied_weight_attr="embedding.words.weight")

    return [end(Ends.first), *[LayerSpec(Block, size) for _ in range(size.layers)], end(Ends.last)]


def mean_loss(logits: torch.Tensor, labels: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Return the loss of one micro-batch.

    It is scaled so that DeepSpeed's mean over micro-batches equals the mean over the labels of the
    whole batch; a mean of means would weight labels by how much padding surrounds them.
    """
    targets, counted = labels
    return loss_sum(logits, targets) / counted


def pipeline_module(run: setting.Setting, balance: str, stages: int) -> nn.Module:
    """This rank's stage. Every layer has its own seed: weights do not depend on the split."""
    from deepspeed.pipe import PipelineModule

    class BalancedPipeline(PipelineModule):
        """PipelineModule, with --balance as well as DeepSpeed's own methods."""

        def _partition_layers(self, method: str) -> None:
            if method in METHODS:
                super()._partition_layers(method)
                return
            counts = options.parse_balance("--balance", method, len(self._layer_specs), stages)
            self.parts = [sum(counts[:stage]) for stage in range(stages + 1)]
            self._set_bounds(*self.parts[self.stage_id:self.stage_id + 2])

    module = BalancedPipeline(specifications(run.size), num_stages=stages, loss_fn=mean_loss,
                              partition_method=balance, seed_layers=True, base_seed=run.seed)
    for index, use in enumerate(module.forward_funcs, start=module._local_start):
        if isinstance(use, Block):
            run.load(use, index)
    for ends in module.tied_modules.values():
        run.load(ends.embedding, 0)
        run.load(ends.head, run.size.layers + 1)
    # DeepSpeed clips by the norm over the weights that are marked so, and by the first stage's
    # alone where none is. The tied matrix counts once, on the first stage.
    for name, weight in module.named_parameters():
        weight.model_parallel = module.stage_id == 0 or not name.endswith("words.weight")
    return module


def micro_batches(run: setting.Setting, size: int, count: int) -> Iterator[Any]:
    """(tokens, (labels, their share of the batch's labels)) for each micro-batch, forever.

    Every stage draws them alike; the first uses the tokens, the last the labels.
    """
    for tokens, labels in run.batches(size * count):
        share = (labels != NO_LABEL).sum() / count
        for some, theirs in zip(tokens.split(size), labels.split(size), strict=True):
            yield some, (theirs, share)


def deepspeed_schedule(stages: int, count: int) -> list[list[str]]:
    """Return DeepSpeed's TrainSchedule in the notation of pipeline_schedules.

    There is one row per stage; F0 is the forward pass of micro-batch 0, and B0 its backward pass.
    """
    from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass, TrainSchedule

    rows = []
    for stage in range(stages):
        done, row = {"F": 0, "B": 0}, []
        for step in TrainSchedule(micro_batches=count, stages=stages, stage_id=stage):
            for instruction in step:
                kind = {ForwardPass: "F", BackwardPass: "B"}.get(type(instruction))
                if kind:  # micro-batches come in their order: the next one of its kind
                    row.append(f"{kind}{done[kind]}")
                    done[kind] += 1
        rows.append(row)
    return rows


def show(schedule: list[list[str]]) -> None:
    emit("DeepSpeed's schedule, stage by stage:")
    for stage, row in enumerate(schedule):
        emit(f"stage {stage}: {' '.join(row)}")


def join_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks. A launcher says them; under srun, Slurm does."""
    environment = os.environ
    if "RANK" not in environment and "SLURM_PROCID" in environment:
        hosts = subprocess.run(["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]],
                               capture_output=True, text=True, check=True).stdout.split()
        port = 20000 + int(environment["SLURM_JOB_ID"]) % 10000
        environment.update(RANK=environment["SLURM_PROCID"], MASTER_ADDR=hosts[0],
                           WORLD_SIZE=environment["SLURM_NTASKS"], MASTER_PORT=str(port),
                           LOCAL_RANK=environment["SLURM_LOCALID"])
    if "RANK" not in environment:
        raise LabError("this is one process of several: start it with srun, or with the deepspeed "
                       "launcher, as the top of the file shows")
    return int(environment["RANK"]), int(environment["WORLD_SIZE"])


def train(engine: Any, run: setting.Setting, iterations: int) -> None:
    """Train; rank 0 prints each iteration, and every stage what it took in the end."""
    size, count = engine.train_micro_batch_size_per_gpu(), engine.gradient_accumulation_steps()
    batches = micro_batches(run, size, count)
    saved, seconds = SavedTensors(engine.module.parameters()), []
    for iteration in range(1, iterations + 1):
        begin = time.perf_counter()
        with saved:
            loss = engine.train_batch(batches)  # every micro-batch, and one step
        seconds.append(time.perf_counter() - begin)
        if engine.global_rank == 0:
            emit(f"iteration {iteration}/{iterations} | loss {loss.item():.6f} | "
                 f"grad norm {float(engine.get_global_grad_norm()):.6f} | "
                 f"{1000 * seconds[-1]:.0f} ms")
    middle = statistics.median(seconds)
    if engine.global_rank == 0:
        emit(f"speed: {1000 * middle:.0f} ms an iteration (median), "
             f"{size * count * run.seq_length / middle:,.0f} tokens/s")
    module = engine.module
    emit(f"stage {engine.stage_id}: layers {module._local_start} to {module._local_stop - 1}, "
         f"{sum(weight.numel() for weight in module.parameters()) / 1e6:.1f}M parameters, "
         f"{saved.peak / 1e6:.1f} MB of activations at most")


def flags() -> argparse.ArgumentParser:
    parser = options.parser(__doc__)
    pipeline = parser.add_argument_group("pipeline")
    pipeline.add_argument("--balance", metavar="HOW",
                          help=f"layers of each stage, or {', '.join(METHODS)} (default: {BALANCE} "
                          "on four stages, else parameters)")
    pipeline.add_argument("--micro-batches", type=options.positive, metavar="N",
                          help="of a batch, instead of the file's gradient_accumulation_steps")
    pipeline.add_argument("--config", type=Path, metavar="FILE",
                          default=Path(__file__).with_suffix(".json"),
                          help="DeepSpeed's (default: pipe_dream.json beside this program)")
    pipeline.add_argument("--show-schedule", metavar="P,M",
                          help="print DeepSpeed's schedule of P stages and M micro-batches; no run")
    pipeline.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)  # of the launcher
    return parser


def configuration(arguments: argparse.Namespace) -> dict[str, Any]:
    """The file's, with what flags say instead. Raises LabError."""
    from lablib.deepspeed_cpu import read_config

    config = read_config(arguments.config)
    if arguments.micro_batches:
        config["gradient_accumulation_steps"] = arguments.micro_batches
    if arguments.lr is not None:
        config["optimizer"]["params"]["lr"] = arguments.lr
    if arguments.clip_grad is not None:
        config["gradient_clipping"] = arguments.clip_grad
    return config


def main() -> None:
    arguments = flags().parse_args()
    if arguments.show_schedule:
        stages, count = options.pair("--show-schedule", arguments.show_schedule)
        show(deepspeed_schedule(stages, count))
        return
    rank, stages = join_ranks()
    from lablib.deepspeed_cpu import deepspeed

    config, run = configuration(arguments), setting.read(arguments)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    balance = arguments.balance or (BALANCE if stages == 4 else METHODS[0])
    module = pipeline_module(run, balance, stages)
    engine, *_ = deepspeed.initialize(model=module, config=config,
                                      model_parameters=[*module.parameters()])
    if rank == 0:
        sizes = [int(stop - start) for start, stop in itertools.pairwise(module.parts)]
        emit(f"DeepSpeed: balance {sizes}, {engine.gradient_accumulation_steps()} micro-batches of "
             f"{engine.train_micro_batch_size_per_gpu()} x {run.seq_length} tokens")
        show(deepspeed_schedule(stages, engine.gradient_accumulation_steps()))
    train(engine, run, arguments.iterations)


if __name__ == "__main__":
    from lablib.deepspeed_cpu import leave

    leave(options.explained(main))

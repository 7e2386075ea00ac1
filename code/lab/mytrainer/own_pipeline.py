"""The student's Llama on the stages of a pipeline, which the student's executor runs (lab 10).

A whole step is one call of the model: its forward and backward passes, as the schedule orders them.
The student's loop then calls `backward` on the loss that the call returns, which changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lab.mytrainer import pieces
from lab.mytrainer.flags import SCHEDULES, LoopConfig
from lab.mytrainer.own_model import (
    OwnGrid,
    OwnLlama,
    begin_dropout,
    default_group,
    save_memory,
    sharing_of,
)
from minimegatron.context import Context, MicroBatch, params_dtype
from minimegatron.errors import UserError
from minimegatron.grid import groups_along, make_group
from minimegatron.initialize import create_folders
from minimegatron.parallel.stages import layer_numbers
from minimegatron.report.timeline import Recorder
from pipeline_schedules import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    Action,
    Schedule,
    ScheduleError,
    check,
    load,
    parse,
    splits_backward,
    to_text,
)
from pipeline_schedules.traces import SECTIONS


class OwnPipeline(OwnLlama):
    """The chunks of the student's Llama on this rank, with the interface of OwnLlama.

    `forward` takes all micro-batches of a step.
    """

    def __init__(self, ctx: Context, vocab_size: int, world: dist.ProcessGroup) -> None:
        """Create the chunks on this rank's device, and initialize them.

        Args:
            ctx: this rank, whose grid is an OwnGrid.
            vocab_size: the number of tokens, padded.
            world: the process group of all ranks.
        """
        super().__init__(ctx, vocab_size, world)
        config, grid = ctx.config, ctx.grid
        with default_group(world):
            self.tied = self._tie(grid)
        schedule = schedule_of(config)
        make = self._stage_class(schedule)
        p2p, executor = pieces.load("p2p"), pieces.load("pipeline")
        links = executor.BlockingLinks(grid.links["F"]) if p2p is None else p2p.Links(grid.links)
        self.pipeline = executor.Pipeline(
            [self._run_chunk(number) for number in range(config.chunks)], links, self._buffer, make)
        words = [actions.split() for actions in to_text(schedule)]
        self.program = pieces.load("program").add_communication(words)[grid.pp.index]
        with default_group(world):
            self.timeline = Timeline(ctx, self.pipeline.stages) if config.timeline else None
        tokens = [config.seq_length * config.micro_batch_size] * config.num_micro_batches
        self.weights = pieces.load("micro_batches").loss_weights(tokens)
        self.anchor = torch.zeros((), device=ctx.device.torch_device, requires_grad=True)
        self.steps = 0

    @property
    def parts(self) -> list[nn.Module]:
        return list(self.llama)

    @property
    def blocks(self) -> list[nn.Module]:
        return [layer for chunk in self.llama for layer in chunk.layers.values()]

    def forward(self, batches: Sequence[MicroBatch]) -> torch.Tensor:
        """Run a step, which leaves gradients; return the mean loss of its micro-batches (fp32)."""
        self.steps += 1
        scale = 1.0 if self.scaler is None else float(self.scaler.scale)  # of the backward passes
        # The stages in the middle have neither tokens nor labels.
        data = [SimpleNamespace(dropout=batch.dropout, **{
            name: None if (one := getattr(batch, name)) is None else one.t()
            for name in ("tokens", "labels", "loss_mask")}) for batch in batches]
        recorded = nullcontext() if self.timeline is None else self.timeline.step(self.steps)
        with default_group(self.world):
            with recorded:
                loss = self.pipeline.run(self.program, data, [scale * one for one in self.weights])
            # The last stage alone has a loss, and every rank logs it.
            loss = self.anchor.detach().clone() if loss is None else loss.detach().float() / scale
            dist.all_reduce(loss, group=self.ctx.grid.links["F"])
        return loss + 0 * self.anchor

    def finish_gradients(self) -> None:
        """Sum the gradients that are terms, those of the two ends included."""
        super().finish_gradients()
        if self.tied is not None:
            with default_group(self.world):
                self.tied.finish()

    @property
    def sharing(self) -> object:
        return sharing_of(self.ctx.grid.model.process_group)

    def _build(self, shape: SimpleNamespace) -> nn.Module:
        make, pp = pieces.load("llama_stage").LlamaStage, self.ctx.grid.pp
        numbers = layer_numbers(self.ctx.config)
        return nn.ModuleList(
            make(shape, self.region, numbers[at], at == 0, at == len(numbers) - 1)
            for at in range(pp.index, len(numbers), pp.size))

    def _save_memory(self) -> None:
        for chunk in self.llama:
            save_memory(self.ctx.config, list(chunk.layers.values()))

    def _tie(self, grid: OwnGrid) -> object | None:
        """Return your TiedEnds on the first and the last stage, if they share a matrix."""
        if self.ctx.config.untie_embeddings_and_output_weights or grid.ends is None:
            return None
        is_first = grid.pp.index == 0
        weight = self.llama[0].embedding.weight if is_first else self.llama[-1].head.weight
        return pieces.load("tied").TiedEnds(weight, grid.ends)

    def _stage_class(self, schedule: Schedule) -> type:
        """Return your class for stages that run a schedule.

        With --delay-wgrad-compute, column-parallel layers leave their weight gradients to it.
        """
        delays = self.ctx.config.delay_wgrad_compute
        if not splits_backward(schedule):
            if delays:
                raise UserError(f"--delay-wgrad-compute: --schedule {self.ctx.config.schedule} has "
                                "no W; nearest: --schedule zb-h1")
            return pieces.load("stage").Stage
        if not delays:
            return pieces.load("split_backward").SplitStage
        deferring = pieces.load("deferred_wgrad")
        self.region.columns = partial(deferring.deferred_columns, self.region)
        return deferring.DeferringStage

    def _run_chunk(self, number: int) -> Callable:
        """Return what the executor calls for a chunk, given hidden states and a micro-batch."""
        def run(x: torch.Tensor | None, data: SimpleNamespace) -> torch.Tensor:
            if data.dropout is not None:
                begin_dropout(self.llama[number], data)
            return self.llama[number](x, data)

        return run

    def _buffer(self, data: SimpleNamespace) -> torch.Tensor:
        """Return an empty tensor for the hidden states of a micro-batch, [s, b, h] or a part."""
        config = self.ctx.config
        length = config.seq_length // (self.region.size if config.sequence_parallel else 1)
        return torch.empty(length, config.micro_batch_size, config.hidden_size,
                           dtype=params_dtype(config), device=self.ctx.device.torch_device)


def schedule_of(config: LoopConfig) -> Schedule:
    """Return the schedule of your file that --schedule chooses, or of the file that it names.

    Raises UserError if it is no valid schedule.
    """
    stages, micro_batches = config.pipeline_model_parallel_size, config.num_micro_batches
    sizes = {"stages": stages, "micro_batches": micro_batches, "chunks": config.chunks}
    try:
        if config.schedule in SCHEDULES:
            piece, function = SCHEDULES[config.schedule]
            source = f"mytrainer/{piece}.py"
            more = [config.chunks] if config.schedule == "interleaved" else []
            made = getattr(pieces.load(piece), function)(stages, micro_batches, *more)
            schedule = parse(made, source)
        else:
            source = f"--schedule {config.schedule}"
            schedule = load(config.schedule, *sizes.values())
        check(schedule, **sizes, v_shaped=False, source=source)
    except ScheduleError as error:
        raise UserError(str(error)) from error
    return schedule


class Timeline:
    """Records one step of the first pipeline for --timeline; each of its ranks is a stage."""

    def __init__(self, ctx: Context, stages: Iterable[Any]) -> None:
        """Watch the stages of this rank. All ranks call it, to create a group for control.

        Args:
            ctx: this rank.
            stages: those of your executor.
        """
        grid, self.group, self.recorder = ctx.grid, None, None
        pipelines = groups_along("pp", grid.sizes)
        control = make_group(pipelines, "gloo")
        if grid.dp.index or grid.tp.index:
            return
        create_folders(ctx.config)
        alone = replace(grid, rank=grid.pp.index, world_size=grid.pp.size)
        self.group, self.recorder = control.process_group, Recorder(replace(ctx, grid=alone))
        for chunk, stage in enumerate(stages):
            record(stage, chunk, self.recorder, ctx.device.now)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Record the step with this number, if it is the one of --timeline-iteration."""
        if self.recorder is None:
            yield
            return
        with default_group(self.group):
            self.recorder.begin_step(number)
        yield
        with default_group(self.group):
            self.recorder.finish()


def record(stage: Any, chunk: int, recorder: Recorder, now: Callable[[], float]) -> None:
    """Let a stage of your executor record its passes for --timeline.

    Args:
        stage: its methods take the number of a micro-batch first.
        chunk: its number on this rank.
        recorder: records one step.
        now: waits for the device, and returns the time in seconds.
    """
    def timed(name: str, kind: str, method: Callable) -> Callable:
        def run(number: int, *arguments: Any) -> Any:
            if not recorder.active:
                return method(number, *arguments)
            start = now()
            result = method(number, *arguments)
            recorder.add(name, start, now(), Action(kind, number, chunk))
            return result

        return run

    for method, kind in (("forward", FORWARD), ("backward", BACKWARD), ("weight", WEIGHT)):
        if hasattr(stage, method):
            setattr(stage, method, timed(SECTIONS[kind], kind, getattr(stage, method)))

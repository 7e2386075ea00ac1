"""The loop: build everything, step, report, validate, save, stop."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from minimegatron.arguments import Config
from minimegatron.checkpoint import load as resume
from minimegatron.checkpoint import save as checkpoint
from minimegatron.checkpoint.save import Progress
from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_train_valid_test_datasets
from minimegatron.data.tokenizer import GPT2BPETokenizer, pad_vocab_size
from minimegatron.errors import SharedError, UserError
from minimegatron.evaluation import evaluate
from minimegatron.exits import Exits
from minimegatron.initialize import initialize, say_initialized, say_start
from minimegatron.logging.megatron import (
    Profiler,
    TensorBoard,
    print_arguments,
    print_datetime,
    validation_lines,
)
from minimegatron.logging.status import Status
from minimegatron.logging.step_log import StepLog
from minimegatron.logging.timeline import Recorder
from minimegatron.logging.timers import Timers, say_times
from minimegatron.model.gpt import MicroBatch
from minimegatron.optim.learning_rate import LearningRate
from minimegatron.optim.optimizer import Optimizer
from minimegatron.parallel.pipeline import Pipeline
from minimegatron.parallel.stages import TiedEmbedding, as_module, build_chunks
from pipeline_schedules import (
    Schedule,
    ScheduleError,
    add_communication,
    check,
    load,
    peak_live,
    to_text,
)


def pretrain(config: Config, notes: list[str]) -> None:
    """Train as `config` says; `notes` on the command line are printed first. Raises UserError."""
    started = time.perf_counter()
    say_start(config, notes)
    ctx = initialize(config)
    tokenizer = GPT2BPETokenizer(config.vocab_file, config.merge_file)
    vocab_size = pad_vocab_size(tokenizer.vocab_size, config.make_vocab_size_divisible_by,
                                config.tensor_model_parallel_size)
    print_arguments(ctx, {"padded_vocab_size": vocab_size})
    ctx.say(f"setting number of micro-batches to constant {config.num_micro_batches}")
    ctx.say(f"> building {config.tokenizer_type} tokenizer ...")
    ctx.say(f" > padded vocab (size: {tokenizer.vocab_size}) with "
            f"{vocab_size - tokenizer.vocab_size} dummy tokens (new size: {vocab_size})")
    say_initialized(ctx)
    ctx.say(f"time to initialize megatron (seconds): {time.perf_counter() - started:.3f}")
    print_datetime(ctx, "after megatron is initialized")
    trainer = Trainer(ctx, vocab_size, started)
    seconds = {"model-and-optimizer-setup": trainer.load()}
    start = time.perf_counter()
    train, valid, test = datasets(ctx, tokenizer.vocab_size)
    print_datetime(ctx, "after dataloaders are built")
    seconds["train/valid/test-data-iterators-setup"] = time.perf_counter() - start
    ctx.say("done with setup ...")
    say_times(ctx, seconds)
    ctx.say("training ...")
    batches = {name: data and Batches(ctx, data, tokenizer.eod, name)
               for name, data in (("training", train), ("validation", valid), ("test", test))}
    try:
        trainer.train(batches["training"], batches["validation"])
        trainer.finish(batches["validation"], batches["test"])
    except Exception:
        trainer.status.phase("failed")
        raise


def datasets(ctx: Context, vocab_size: int) -> tuple:
    """(training, validation, test) data sets; the last two may be None. Raises UserError."""
    config, batch = ctx.config, ctx.config.global_batch_size
    validations = config.train_iters // config.eval_interval + 1
    wanted = (config.train_iters * batch, validations * config.eval_iters * batch,
              config.eval_iters * batch)
    built = build_train_valid_test_datasets(
        config.data_path, config.split, config.seq_length, config.seed, wanted,
        is_builder=ctx.grid.rank == 0, barrier=dist.barrier, say=ctx.say,
        cache_path=config.data_cache_path, vocab_size=vocab_size)
    if built[0] is None:
        raise UserError(f"--split {config.split} leaves no document of {config.data_path} to train "
                        "on; nearest: --split 100,0,0")
    return built


def load_schedule(ctx: Context) -> Schedule:
    """The schedule that --schedule names, checked, for all stages. Every rank must call it.

    Raises SharedError for one that does not make sense on some rank, and where ranks read
    different ones.
    """
    config, source = ctx.config, f"--schedule {ctx.config.schedule}"
    stages, micro_batches = ctx.grid.pp.size, config.num_micro_batches
    schedule, wrong = [], None
    try:
        schedule = load(config.schedule, stages, micro_batches, config.chunks)
        check(schedule, stages=stages, micro_batches=micro_batches, chunks=config.chunks,
              source=source)
    except ScheduleError as error:
        wrong = str(error)
    told: list[tuple[str | None, list[str]]] = [(None, [])] * ctx.grid.world_size
    dist.all_gather_object(told, (wrong, to_text(schedule)))
    everywhere = all(one == told[0] for one in told)
    rank, wrong = next(((rank, wrong) for rank, (wrong, _) in enumerate(told) if wrong),
                       (None, None))
    if wrong is not None:
        raise SharedError(wrong if everywhere else f"on rank {rank}, not on all: {wrong}")
    if not everywhere:
        other = next(rank for rank, one in enumerate(told) if one != told[0])
        raise SharedError(f"{source}: rank 0 and rank {other} read different schedules from it; "
                          "give a file that all nodes share, and that says the same whenever it is "
                          "read")
    return schedule


class Trainer:
    """One rank's model, optimizer and progress, and the steps it takes."""

    def __init__(self, ctx: Context, vocab_size: int, started: float) -> None:
        """started: when the program began, on time.perf_counter's clock."""
        config = ctx.config
        self.started, self.saved_at = started, None
        self.ctx, self.config, self.vocab_size = ctx, config, vocab_size
        self.status = Status(ctx)
        self.setup_started = time.perf_counter()
        schedule = load_schedule(ctx)
        self.live = peak_live(schedule)
        chunks = build_chunks(ctx, vocab_size)
        self.tied = TiedEmbedding(ctx, chunks)
        self.model = as_module(chunks)
        self.optimizer = Optimizer(ctx, self.model)
        self.learning_rate = LearningRate(config)
        self.progress = Progress()
        self.recorder = Recorder(ctx)
        self.timers = Timers(ctx.device.now, config.timing_log_level, self.recorder,
                             ctx.device.mark)
        self.board = TensorBoard(ctx)
        self.pipeline = Pipeline(ctx, chunks, add_communication(schedule),
                                 self.optimizer.gradients, self.timers)
        if ctx.grid.writes_shard:
            count = sum(p.numel() for p in self.model.parameters())
            emit(" > number of parameters on (tensor, pipeline) model parallel rank "
                 f"({ctx.grid.tp.index}, {ctx.grid.pp.index}): {count}")
        ctx.say(f"> learning rate decay style: {config.lr_decay_style}")

    def load(self) -> float:
        """Resume where --load says. Returns the seconds that building and loading took."""
        if self.config.load is not None and not self.ctx.device.has_values:
            self.ctx.say(f"--load {self.config.load}: nothing is loaded, weights on a "
                         f"{self.ctx.device.label} have no values")
        elif self.config.load is not None:
            self.progress = resume.load(self.ctx, self.model, self.optimizer,
                                        self.learning_rate, self.vocab_size)
            if self.config.load == self.config.save and self.progress.iteration:
                self.saved_at = self.progress.iteration
        print_datetime(self.ctx, "after model, optimizer, and learning rate scheduler are built")
        return time.perf_counter() - self.setup_started

    def save(self) -> None:
        if self.saved_at == self.progress.iteration:
            return
        if not self.ctx.device.has_values:
            self.ctx.say(f"no checkpoint is saved at iteration {self.progress.iteration}: weights "
                         f"on a {self.ctx.device.label} have no values")
            return
        self.saved_at = self.progress.iteration
        self.status.phase("saving")
        checkpoint.save(self.ctx, self.model, self.optimizer, self.learning_rate, self.progress,
                        self.vocab_size)

    def step(self, batches: list[MicroBatch]) -> tuple[torch.Tensor, torch.Tensor]:
        """One optimizer step. Returns (this rank's mean loss, the gradient norm)."""
        gradients = self.optimizer.gradients
        gradients.begin()
        scaler = self.optimizer.scaler
        with self.timers("forward-backward"):
            loss = self.pipeline.train(batches, scaler and scaler.scale)
        # Before the replicas' sum, of which each may get a part: the ends' parts differ.
        with self.timers("backward-embedding-all-reduce"):
            self.tied.all_reduce()
        with self.timers("backward-params-all-reduce"):
            gradients.finish()
        with self.timers("optimizer"):
            norm = self.optimizer.step(self.learning_rate.value(), self.timers)
        self.progress.iteration += 1
        self.progress.consumed_train_samples += self.config.global_batch_size
        # A skipped step does not count here.
        # Not in place: a resumed count is on the host, `advanced` may be on the device.
        self.learning_rate.samples = (self.learning_rate.samples
                                      + self.config.global_batch_size * self.optimizer.advanced)
        return loss, norm

    def train(self, train: Batches, valid: Batches | None) -> None:
        """Steps until --train-iters or an exit condition."""
        config, ctx, progress = self.config, self.ctx, self.progress
        print_datetime(ctx, "before the start of training step")
        exits, profiler = Exits(config, self.started), Profiler(ctx)
        log = StepLog(ctx, self.timers, self.board, self.optimizer, self.vocab_size,
                      self.live)
        if config.timeline and progress.iteration >= config.timeline_iteration:
            ctx.say(f"WARNING: --timeline-iteration {config.timeline_iteration}: the run resumes "
                    f"after iteration {progress.iteration}, nothing will be recorded; nearest: "
                    f"--timeline-iteration {progress.iteration + 3}")
        while progress.iteration < config.train_iters:
            self.recorder.begin(progress.iteration + 1)
            start = ctx.device.now()
            with self.timers("batch-generator"):
                batches = train.step(progress.consumed_train_samples, progress.iteration)
            loss, norm = self.step(batches)
            profiler.step()
            seconds = ctx.device.now() - start
            log.add(loss, norm, seconds)
            self.recorder.finish()
            log.report(progress, self.learning_rate.value())
            self.status.step(progress.iteration, seconds, log.shown)
            if valid is not None and progress.iteration % config.eval_interval == 0:
                progress.consumed_valid_samples = self.validate(
                    valid, progress.consumed_valid_samples, f"iteration {progress.iteration}")
            why = exits.reason(progress.iteration)
            due = config.save_interval and progress.iteration % config.save_interval == 0
            if config.save and (due or why):
                self.save()
            if why:
                self.status.update(state=f"stopped {why}")
                profiler.stop()
                self.board.close()
                self.say_closing()
                print_datetime(ctx, f"exiting program {why}")
                raise SystemExit(0)
        profiler.stop()

    def finish(self, valid: Batches | None, test: Batches | None) -> None:
        """What comes after the last step: the last checkpoint, and both evaluations."""
        progress = self.progress
        print_datetime(self.ctx, "after training is done")
        if self.config.save and progress.iteration % self.config.save_interval != 0:
            self.save()
        if valid is not None:
            self.validate(valid, progress.consumed_valid_samples,
                          "the end of training for val data")
        if test is not None:
            self.validate(test, 0, "the end of training for test data")
        self.say_closing()
        self.board.close()
        self.status.update(state="done")

    def say_closing(self) -> None:
        """Raises VirtualGpuError when too much of a modeled run was a guess."""
        for line in self.ctx.device.closing():
            emit(f"[rank {self.ctx.grid.rank}] {line}")

    def validate(self, data: Batches, consumed: int, prefix: str) -> int:
        """Print and plot the mean loss over --eval-iters batches; returns the samples consumed."""
        if not self.config.eval_iters:
            return consumed
        self.status.phase("evaluating")
        with self.timers.paused():
            mean, consumed = evaluate(self.ctx, self.pipeline, data, consumed)
        loss = self.ctx.read(mean)
        if loss is not None:
            for line in validation_lines(prefix, loss):
                self.ctx.say_last(line)
            self.board.validation(loss, self.progress)
        return consumed

"""The training loop: build the model and data, take steps, report, validate, save, and stop."""

from __future__ import annotations

import time
from typing import NoReturn

import torch

from minimegatron.arguments import Config
from minimegatron.context import Context, MicroBatch, Progress
from minimegatron.data.batches import Batches
from minimegatron.data.gpt_dataset import build_datasets
from minimegatron.data.tokenizer import AnyVocabulary, vocabulary_of
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import emit
from minimegatron.exits import Exits, any_rank
from minimegatron.initialize import initialize
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.pipeline import LossSum, Pipeline
from minimegatron.parallel.stages import (
    TiedEmbedding,
    as_module,
    build_chunks,
    data_parallel,
    load_schedule,
)
from minimegatron.report import log_lines
from minimegatron.report.requested import requested_reports
from minimegatron.report.step_log import StepLog
from minimegatron.timers import Timers
from pipeline_schedules import add_communication


def pretrain(config: Config, notes: list[str]) -> None:
    """Train a GPT from the command line to the last checkpoint; `notes` are printed first.

    Raises UserError for anything that the user can fix.
    """
    started = time.perf_counter()
    log_lines.print_world_size(config, notes)
    ctx = initialize(config)
    vocabulary = vocabulary_of(config)
    vocab_size = pad_vocab_size(vocabulary.vocab_size, config.make_vocab_size_divisible_by,
                                config.tensor_model_parallel_size)
    log_lines.print_arguments(ctx, vocab_size)
    log_lines.print_initialization(ctx, vocabulary.vocab_size, vocab_size,
                                  time.perf_counter() - started)
    log_lines.print_datetime(ctx, "after megatron is initialized")

    setup_started = time.perf_counter()
    trainer = Trainer(ctx, vocab_size, started)
    if config.load is not None:
        trainer.resume()
    log_lines.print_datetime(ctx, "after model, optimizer, and learning rate scheduler are built")
    data_started = time.perf_counter()
    train, valid, test = build_batches(ctx, vocabulary)
    log_lines.print_datetime(ctx, "after dataloaders are built")
    ctx.print_rank_0("done with setup ...")
    log_lines.print_times(ctx, {"model-and-optimizer-setup": data_started - setup_started,
        "train/valid/test-data-iterators-setup": time.perf_counter() - data_started})

    ctx.print_rank_0("training ...")
    try:
        trainer.train(train, valid)
        trainer.finish(valid, test)
    except Exception:
        trainer.log.phase("failed")
        raise


def build_batches(ctx: Context, vocabulary: AnyVocabulary
                  ) -> tuple[Batches, Batches | None, Batches | None]:
    """Build this rank's training, validation, and test batches. Raises UserError."""
    named = zip(("training", "validation", "test"), build_datasets(ctx, vocabulary.vocab_size),
                strict=True)
    return tuple(data and Batches(ctx, data, vocabulary.eod, name) for name, data in named)


class Trainer:
    """One rank's model, optimizer, and progress."""

    def __init__(self, ctx: Context, vocab_size: int, started: float) -> None:
        """Build the model and the optimizer; every rank must call it.

        The vocabulary is padded. --exit-duration-in-mins counts from `started`, on
        time.perf_counter's clock.
        """
        self.ctx, self.config, self.vocab_size = ctx, ctx.config, vocab_size
        self.started, self.saved_at, self.saving = started, None, None
        self.progress = Progress()
        self.timers = Timers(ctx.device.now, ctx.config.timing_log_level, mark=ctx.device.mark)
        reports = requested_reports(ctx, self.timers)
        self.schedule = load_schedule(ctx)
        chunks = build_chunks(ctx, vocab_size)
        self.tied_embedding = TiedEmbedding(ctx, chunks)
        self.model = as_module(chunks)
        self.ddp = data_parallel(ctx, self.model)
        self.optimizer = Optimizer(ctx, self.ddp)
        self.learning_rate = LearningRate(ctx.config)
        self.log = StepLog(ctx, self.timers, self.optimizer, reports)
        program = add_communication(self.schedule, is_checked=True)
        self.pipeline = Pipeline(ctx, chunks, program, self.ddp, self.timers)
        log_lines.print_model(ctx, sum(p.numel() for p in self.model.parameters()))

    def step(self, batches: list[MicroBatch]) -> tuple[torch.Tensor, torch.Tensor]:
        """Take one optimizer step. Returns this rank's loss, whose mean over the replicas is the
        mean loss of all counted tokens, and the gradient norm, both of one element."""
        self.optimizer.zero_grad()
        scaler = self.optimizer.scaler
        with self.timers("forward-backward"):
            losses = self.pipeline.forward_backward(batches, scaler and scaler.scale)
            for chunk in self.pipeline.chunks:
                chunk.end_step()
        # Before the data-parallel reduction, which leaves a sharded replica only a part of the sum.
        with self.timers("backward-embedding-all-reduce"):
            self.tied_embedding.all_reduce(self.ddp)
        with self.timers("backward-params-all-reduce"):
            self.ddp.finish_grad_sync()
        with self.timers("optimizer"):
            counted = self._counted_share(losses)
            norm = self.optimizer.step(self.learning_rate.value(), self.timers, counted)
        self.progress.iteration += 1
        self.progress.consumed_train_samples += self.config.global_batch_size
        # `advanced` is 0 after a skipped step, and may be on the device; a resumed count is on the
        # host, so the sum is not in place.
        self.learning_rate.samples = (self.learning_rate.samples
                                      + self.config.global_batch_size * self.optimizer.advanced)
        loss = losses.total / max(losses.tokens, 1)
        return loss if counted is None else loss / counted, norm

    def _counted_share(self, losses: LossSum) -> torch.Tensor | None:
        """Return the share of the global batch's tokens that count in the loss (one element).

        The mean is over all counted tokens of the step, however they are distributed over
        micro-batches and replicas. Returns None if no flag leaves tokens out.
        """
        if not self.config.eod_mask_loss:
            return None
        counts = torch.stack([losses.counted, torch.full_like(losses.counted, losses.tokens)])
        for group in (self.ctx.grid.replicas, self.ctx.grid.pp):
            group.all_reduce(counts)
        counted, tokens = counts
        return counted.clamp(min=1) / tokens

    def train(self, train: Batches, valid: Batches | None) -> None:
        """Take steps until --train-iters, or until an exit condition ends the program.

        Every --eval-interval steps, evaluate on the validation batches, if --split leaves any.
        """
        config, progress, log = self.config, self.progress, self.log
        log_lines.print_datetime(self.ctx, "before the start of training step")
        exits = Exits(config, self.started)
        log.start(self)
        while progress.iteration < config.train_iters:
            log.begin_step(progress.iteration + 1)
            with self.timers("batch-generator"):
                batches = train.step(progress.consumed_train_samples, progress.iteration)
            loss, norm = self.step(batches)
            del batches  # the next step's are drawn while the main gradients still exist
            log.end_step(loss, norm, progress, self.learning_rate.value())
            if self.saving is not None and not any_rank(self.saving.is_writing):
                self.finish_saving()
            if valid is not None and progress.iteration % config.eval_interval == 0:
                progress.consumed_valid_samples = self.validate(
                    valid, progress.consumed_valid_samples, f"iteration {progress.iteration}")
            reason = exits.reason(progress.iteration)
            due = config.save_interval and progress.iteration % config.save_interval == 0
            if config.save and (due or reason):
                self.save()
            if reason:
                self.stop(reason)
        log.end_training()

    def finish(self, valid: Batches | None, test: Batches | None) -> None:
        """Save the last checkpoint, and evaluate on validation and test data, if there is any."""
        progress = self.progress
        log_lines.print_datetime(self.ctx, "after training is done")
        if self.config.save and progress.iteration % self.config.save_interval != 0:
            self.save()
        if valid is not None:
            self.validate(valid, progress.consumed_valid_samples,
                          "the end of training for val data")
        if test is not None:
            self.validate(test, 0, "the end of training for test data")
        self.finish_saving()
        self.print_device_summary()
        self.log.close("done")

    def validate(self, data: Batches, consumed: int, prefix: str) -> int:
        """Report the mean loss over --eval-iters batches, in a log line that names `prefix`.

        `consumed` samples of the data have been consumed so far. Returns their number afterward.
        """
        if not self.config.eval_iters:
            return consumed
        from minimegatron.evaluation import evaluate, paused

        self.log.phase("evaluating")
        with paused(self.timers):
            mean, consumed = evaluate(self.ctx, self.pipeline, data, consumed)
        self.log.validation(self.ctx.read(mean), data.name, prefix, self.progress)
        return consumed

    def stop(self, reason: str) -> NoReturn:
        """End the program before the last iteration, with exit code 0."""
        self.log.end_training()
        self.finish_saving()
        self.log.close(f"stopped {reason}")
        self.print_device_summary()
        log_lines.print_datetime(self.ctx, f"exiting program {reason}")
        raise SystemExit(0)

    def resume(self) -> None:
        """Restore the state of --load, if it has a checkpoint. Raises UserError."""
        from minimegatron.checkpoint.load import load

        self.progress = load(self.ctx, self.model, self.optimizer, self.learning_rate,
                             self.vocab_size)
        if self.config.load == self.config.save and self.progress.iteration:
            self.saved_at = self.progress.iteration

    def save(self) -> None:
        """Write a checkpoint, or begin to, unless this iteration has one. Raises UserError."""
        from minimegatron.checkpoint.async_save import start_saving

        if self.saved_at != self.progress.iteration:
            self.finish_saving()
            self.saved_at = self.progress.iteration
            self.log.phase("saving")
            self.saving = start_saving(self.ctx, self.model, self.optimizer, self.learning_rate,
                                       self.progress, self.vocab_size)

    def finish_saving(self) -> None:
        """Wait for the checkpoint in flight, if there is one. Raises UserError."""
        if self.saving is not None:
            self.saving.finish()
            self.saving = None

    def print_device_summary(self) -> None:
        """Print a virtual GPU's remarks. Raises VirtualGpuError if too much of them is a guess."""
        for line in self.ctx.device.closing():
            emit(f"[rank {self.ctx.grid.rank}] {line}")

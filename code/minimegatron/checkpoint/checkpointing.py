"""--load and --save: when a trainer reads and writes a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minimegatron.checkpoint.load import load
from minimegatron.checkpoint.save import save

if TYPE_CHECKING:
    from minimegatron.training import Trainer


def load_checkpoint(trainer: Trainer) -> None:
    """Resume from --load. Raises UserError for a corrupted checkpoint."""
    ctx, config, device = trainer.ctx, trainer.config, trainer.ctx.device
    if not device.has_values:
        ctx.print_rank_0(f"--load {config.load}: nothing is loaded, weights on a "
                         f"{device.label} have no values")
        return
    trainer.progress = load(ctx, trainer.model, trainer.optimizer, trainer.learning_rate,
                            trainer.vocab_size)
    if config.load == config.save and trainer.progress.iteration:
        trainer.saved_at = trainer.progress.iteration


def save_checkpoint(trainer: Trainer) -> None:
    """Write a checkpoint, unless this iteration has one. Raises UserError."""
    iteration, ctx, device = trainer.progress.iteration, trainer.ctx, trainer.ctx.device
    if trainer.saved_at == iteration:
        return
    if not device.has_values:
        ctx.print_rank_0(f"no checkpoint is saved at iteration {iteration}: weights on a "
                         f"{device.label} have no values")
        return
    trainer.saved_at = iteration
    trainer.log.phase("saving")
    save(ctx, trainer.model, trainer.optimizer, trainer.learning_rate, trainer.progress,
         trainer.vocab_size)

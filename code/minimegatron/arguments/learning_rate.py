"""--lr-decay-* and --lr-warmup-*: when the learning rate rises and falls."""

from __future__ import annotations

from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import require


def derive_schedule(config: Config, samples: int) -> Config:
    """Fill in decay and warm-up in samples; the decay takes `samples` unless a flag differs.

    Raises:
        UserError: the flags contradict each other.
    """
    batch, fraction = config.global_batch_size, config.lr_warmup_fraction
    require(config.lr_decay_iters is None or config.lr_decay_samples is None,
            "give one of --lr-decay-iters and --lr-decay-samples, not both "
            f"({config.lr_decay_iters} and {config.lr_decay_samples})")
    decay = (config.lr_decay_samples
             or (batch * config.lr_decay_iters if config.lr_decay_iters else samples))
    warmup = config.lr_warmup_samples or config.lr_warmup_iters * batch
    given = (fraction is not None, config.lr_warmup_iters > 0, config.lr_warmup_samples > 0)
    require(sum(given) <= 1,
            "can only specify one of lr-warmup-fraction and lr-warmup-iters (and -samples)")
    if fraction is not None:
        warmup = fraction * decay
    require(warmup < decay, f"the warm-up ({warmup:.0f} samples) is not shorter than the decay "
            f"({decay} samples); nearest: --lr-warmup-iters {max(decay // batch - 1, 0)}")
    require(not (config.override_lr_scheduler and config.use_checkpoint_lr_scheduler),
            "give one of --override-lr-scheduler and --use-checkpoint-lr-scheduler, not both")
    return replace(config, lr_decay_samples=decay, lr_warmup_samples=warmup)

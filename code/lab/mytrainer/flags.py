"""The flags of my_trainer.py: the subset of pretrain_gpt.py's flags that its loop uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from minimegatron.arguments import Config, parse_arguments
from minimegatron.arguments.parse import parse_unchecked
from minimegatron.arguments.table.flag import table_of
from minimegatron.errors import UserError

MODEL = ("num_layers", "hidden_size", "num_attention_heads", "seq_length",
         "max_position_embeddings", "ffn_hidden_size", "kv_channels",
         "make_vocab_size_divisible_by", "layernorm_epsilon", "init_method_std",
         "attention_dropout", "hidden_dropout", "use_flash_attn")
BATCH = ("micro_batch_size", "global_batch_size", "train_iters", "train_samples", "seed")
OPTIMIZATION = ("lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_decay_samples",
                "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "weight_decay",
                "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
DATA = ("data_path", "data_impl", "data_cache_path", "split", "vocab_file", "merge_file",
        "tokenizer_type", "eod_mask_loss", "num_workers")
REST = ("device", "distributed_timeout_minutes", "local_rank", "log_interval", "log_format",
        "tensorboard_dir", "tensorboard_queue_size")
PRECISION = ("bf16", "fp8_format", "fp8_recipe")
FP8 = {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}  # what mytrainer/fp8.py computes
USED = frozenset((*MODEL, *BATCH, *OPTIMIZATION, *DATA, *REST, *PRECISION))
# The loop has no validation, so the only value it accepts is the one that turns validation off.
NO_VALIDATION = {"eval_iters": 0}


def parse(argv: Sequence[str]) -> Config:
    """Parse the command line into the trainer's Config, whose device is `cpu` or `cuda`.

    Raises:
        UserError: pretrain_gpt.py would refuse the command line, or the loop would ignore a flag.
    """
    config, given = parse_arguments(argv), parse_unchecked(argv)
    for name, flag in table_of(Config).items():
        value = getattr(given, name)
        if flag.derived or name in USED or value in (flag.default, NO_VALIDATION.get(name)):
            continue
        shown = flag.spellings[0] if isinstance(value, bool) else f"{flag.spelling} {value}"
        raise UserError(f"{shown}: my_trainer.py does not use this flag; leave it out, or pass it "
                        "to megatron/Megatron-LM/pretrain_gpt.py")
    for name, value in FP8.items() if config.fp8_format is not None else ():
        spelling, other = table_of(Config)[name].spelling, getattr(config, name)
        if other != value:
            raise UserError(f"{spelling} {other}: mytrainer/fp8.py has E4M3 values, E5M2 "
                            "gradients, and scales from the current amax; nearest: "
                            f"{spelling} {value}")
    if config.device.startswith("virtual"):
        model = config.device.partition(":")[2] or "h100"
        raise UserError(f"--device {config.device}: on virtual GPUs, start my_trainer.py with "
                        f"virtualrun --gpus {model}:8 code/my_trainer.py, without --device")
    if config.device == "auto":
        return replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    return config

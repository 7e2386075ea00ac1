"""The flags of my_trainer.py: the subset of pretrain_gpt.py's flags that its loop uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from lab.mytrainer import pieces
from minimegatron.arguments import Config, parse_arguments
from minimegatron.arguments.fp8 import DELAYED_ONLY
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
PRECISION = ("bf16", "fp8_format", "fp8_recipe", *DELAYED_ONLY)
# What mytrainer/fp8.py computes; the nearest value comes first.
FP8 = {"fp8_format": ("hybrid",), "fp8_recipe": ("tensorwise", "delayed")}
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
    if config.fp8_format is not None:
        _check_fp8(config)
    if config.device.startswith("virtual"):
        model = config.device.partition(":")[2] or "h100"
        raise UserError(f"--device {config.device}: on virtual GPUs, start my_trainer.py with "
                        f"virtualrun --gpus {model}:8 code/my_trainer.py, without --device")
    if config.device == "auto":
        return replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    return config


def _check_fp8(config: Config) -> None:
    """Raise UserError for a recipe that mytrainer/fp8.py does not compute."""
    for name, values in FP8.items():
        spelling, other = table_of(Config)[name].spelling, getattr(config, name)
        if other not in values:
            raise UserError(f"{spelling} {other}: mytrainer/fp8.py has E4M3 values, E5M2 "
                            "gradients, and one scale per tensor; nearest: "
                            f"{spelling} {values[0]}")
    length, algorithm = config.fp8_amax_history_len, config.fp8_amax_compute_algo
    if config.fp8_recipe == "delayed" and length > 1 and algorithm != "max":
        raise UserError(f"--fp8-amax-compute-algo {algorithm}: mytrainer/delayed.py takes the "
                        f"maximum of the {length} entries of its history; nearest: "
                        "--fp8-amax-compute-algo max")


def require_fp8_pieces(config: Config) -> None:
    """Raise UserError unless the student's files can do what the flags of FP8 ask for."""
    if config.fp8_format is None:
        return
    fp8 = pieces.load("fp8")
    if fp8 is None:
        raise UserError(f"--fp8-format {config.fp8_format} needs mytrainer/fp8.py, which you write "
                        "in lab 13; until then, leave the flag out")
    if config.fp8_recipe != "delayed":
        return
    if pieces.load("delayed") is None:
        raise UserError("--fp8-recipe delayed needs mytrainer/delayed.py, which you write in lab "
                        "13, exercise 3; nearest: --fp8-recipe tensorwise")
    if not hasattr(fp8.Linear, "scales"):
        raise UserError("--fp8-recipe delayed: Linear in mytrainer/fp8.py has no scales; you write "
                        "it in lab 13, exercise 5; nearest: --fp8-recipe tensorwise")

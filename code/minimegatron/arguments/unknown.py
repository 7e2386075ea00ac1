"""Flags that do not exist: what to tell the user about each."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import fields

from minimegatron.arguments.table.flag import spelled
from minimegatron.arguments.table.planning import Planning
from minimegatron.errors import UserError

# Flags of Megatron-LM that people will try, and that this trainer does not have yet.
NOT_YET = (
    "--fp32-residual-connection",
    "--context-parallel-size", "--rampup-batch-size",
    "--reset-position-ids", "--reset-attention-mask",
    "--mock-data", "--weight-decay-incr-style", "--start-weight-decay",
    "--end-weight-decay", "--openai-gelu", "--sgd-momentum",
)

# Flags of older Megatron-LM releases, with what they are called in this one (upstream's words).
RENAMED = {
    "--batch-size": "--micro-batch-size",
    "--warmup": "--lr-warmup-fraction",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-activations, or for more control "
                                "--recompute-granularity and --recompute-method,",
}


def refuse_unknown(parser: argparse.ArgumentParser, extras: Sequence[str]) -> None:
    """Raise UserError for the first of the arguments that no flag took."""
    name = extras[0].split("=")[0]
    if name == "--estimate":
        raise UserError("--estimate trains nothing: give it to pretrain_gpt.py")
    if name in [spelled(field.name) for field in fields(Planning)]:
        raise UserError(f"{name} belongs to --estimate, which is not given")
    if name in RENAMED:
        new = RENAMED[name]
        raise UserError(f"{name} argument is no longer valid, use {new} instead")
    if name in NOT_YET:
        raise UserError(f"{name} is a flag of Megatron-LM that this trainer does not have yet; "
                        "leave it out")
    known = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; pretrain_gpt.py --help lists the flags"
    raise UserError(f"unrecognized argument {extras[0]}{hint}")

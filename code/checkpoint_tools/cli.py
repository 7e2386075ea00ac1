"""Carry a model between a checkpoint of the trainer and Hugging Face's format."""

from __future__ import annotations

import argparse
from pathlib import Path

from labcore.errors import LabError


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "convert a checkpoint to Hugging Face's format, or back"
    parser = subparsers.add_parser("convert-checkpoint", help=text, description=text)
    ways = parser.add_subparsers(dest="way", metavar="to-hf|from-hf", required=True)
    out = ways.add_parser("to-hf", help="from the trainer to Hugging Face")
    out.add_argument("source", type=Path, metavar="SAVE",
                     help="what --save named, or an iter_ folder in it")
    out.add_argument("target", type=Path, metavar="FOLDER", help="a new folder")
    out.add_argument("--vocab-size", type=int, metavar="N",
                     help="leave out the rows that pad the vocabulary")
    out.add_argument("--max-shard-gb", type=float, default=5.0, metavar="G",
                     help="the most gigabytes of a file of weights (default: 5)")
    out.set_defaults(run=run_out)
    into = ways.add_parser("from-hf", help="from Hugging Face to the trainer")
    into.add_argument("source", type=Path, metavar="FOLDER",
                      help="has config.json of a GPT-2, Llama, or Qwen3, and the weights")
    into.add_argument("target", type=Path, metavar="SAVE",
                      help="a new folder of checkpoints, for --load")
    into.add_argument("--make-vocab-size-divisible-by", type=int, default=128, metavar="N",
                      help="pad the vocabulary to a multiple of this (default: 128)")
    into.set_defaults(run=run_into)


def run_out(given: argparse.Namespace) -> None:
    """Run `lab convert-checkpoint to-hf`. Raises LabError."""
    from checkpoint_tools.convert import to_hf
    from minimegatron.errors import UserError

    if not given.max_shard_gb > 0:
        raise LabError(f"--max-shard-gb {given.max_shard_gb} is not possible; nearest: 1")
    try:
        missing = to_hf(given.source, given.target, given.vocab_size, given.max_shard_gb * 1e9)
    except UserError as error:
        raise LabError(str(error)) from error
    if missing:
        print(f"without a tokenizer ({missing})")


def run_into(given: argparse.Namespace) -> None:
    """Run `lab convert-checkpoint from-hf`. Raises LabError."""
    from checkpoint_tools.convert import from_hf
    from minimegatron.errors import UserError

    divisor = given.make_vocab_size_divisible_by
    if divisor < 1:
        raise LabError(f"--make-vocab-size-divisible-by {divisor} is not possible; nearest: 1")
    try:
        print("the trainer's flags:", from_hf(given.source, given.target, divisor))
    except UserError as error:
        raise LabError(str(error)) from error

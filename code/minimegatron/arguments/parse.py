"""From the command line to a checked Config; what we do not have is refused by name."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
from collections.abc import Mapping, Sequence

from minimegatron.arguments.checks import check
from minimegatron.arguments.flags import Config, Planning
from minimegatron.arguments.names import ALREADY_SO, CALLED_TODAY, NOT_YET, RENAMED
from minimegatron.errors import UserError

# What a run needs and an estimate does not.
NOT_ESTIMATED = {"data_path": "", "vocab_file": "", "merge_file": "", "lr": 1e-4}


class Parser(argparse.ArgumentParser):
    """argparse, but an error is a UserError: the caller decides which rank prints it."""

    def error(self, message: str) -> None:
        raise UserError(message)


def build_parser() -> Parser:
    """The parser that the fields of Config describe."""
    parser = Parser(prog="pretrain_gpt.py", allow_abbrev=False,
                    description="Train a GPT with Megatron-LM's command line.")
    for field in dataclasses.fields(Config):
        about = dict(field.metadata)
        if about.pop("derived", False):
            continue
        names, off = about.pop("names"), about.pop("off", ())
        spelling = "--" + field.name.replace("_", "-")
        if field.default is True:
            parser.add_argument(*off, dest=field.name, action="store_false", help=about["help"])
        elif field.default is False:
            parser.add_argument(spelling, *names, dest=field.name, action="store_true", **about)
        else:
            if field.default not in (None, ""):
                about["help"] += f" (default: {field.default})".replace("%", "%%")
            spellings = dict.fromkeys((spelling, *names))
            parser.add_argument(*spellings, dest=field.name, default=field.default, **about)
    for name, why in ALREADY_SO.items():
        parser.add_argument(name, action="store_true", help=f"no effect: {why}")
    return parser


def refuse_unknown(parser: Parser, extras: Sequence[str]) -> None:
    """Raise UserError for the first argument that no flag took."""
    if not extras:
        return
    name = extras[0].split("=")[0]
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


def parse_arguments(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> Config:
    """Parse and check `argv` for the rank and the world that `env` (RANK, WORLD_SIZE) names.

    Raises UserError with the flag, its value and the nearest right value.
    """
    config = parse_unchecked(argv, require_all=True)
    if config.estimate:
        return check(planned(config), rank=0, world_size=config.world_size)
    for name in (field.name for field in dataclasses.fields(Planning)):
        if getattr(config, name) != Planning.__dataclass_fields__[name].default:
            raise UserError(f"--{name.replace('_', '-')} belongs to --estimate, which is not given")
    return check(config, rank=number(env, "RANK", 0), world_size=number(env, "WORLD_SIZE", 1))


def parse_unchecked(argv: Sequence[str], require_all: bool = False) -> Config:
    """Parse `argv` without any check between flags: a field that no flag sets has its default.

    Args:
        argv: the words of the command line.
        require_all: whether to refuse a command line that lacks a required flag.

    Raises UserError.
    """
    parser = build_parser()
    # Unknown flags first: with them on the line, "required" errors would mislead.
    parser_of_rest = build_parser()
    for action in parser_of_rest._actions:
        action.required = False
    _, extras = parser_of_rest.parse_known_args(argv)
    refuse_unknown(parser, extras)
    not_needed = NOT_ESTIMATED if "--estimate" in argv else ()
    for action in parser._actions:
        action.required = action.required and require_all and action.dest not in not_needed
    values = vars(parser.parse_args(argv))
    flags = {field.name for field in dataclasses.fields(Config)}
    return Config(**{name: tuple(value) if isinstance(value, list) else value
                     for name, value in values.items() if name in flags})


def planned(config: Config) -> Config:
    """What an estimate does not need gets a value that decides nothing. Raises UserError."""
    for name, least in (("world_size", 1), ("gpus_per_node", 1), ("vocab_size", 1), ("tokens", 1),
                        ("price_per_gpu_hour", 0)):
        value = getattr(config, name)
        if value is not None and not least <= value < float("inf"):
            raise UserError(f"--{name.replace('_', '-')} {value}: must be a number of at least "
                            f"{least}")
    if not config.device.startswith("virtual"):
        raise UserError(f"--estimate with --device {config.device}: an estimate is of virtual "
                        "cards; nearest: --device virtual:a100-80gb")
    if config.plot is not None and not config.plot.endswith((".svg", ".png")):
        raise UserError(f"--plot {config.plot}: a file that ends in .svg or .png; nearest: "
                        f"--plot {config.plot.rpartition('.')[0] or config.plot}.svg")
    if config.plot is not None and not os.path.isdir(os.path.dirname(config.plot) or "."):
        raise UserError(f"--plot {config.plot}: there is no folder {os.path.dirname(config.plot)}")
    fill = {name: value for name, value in NOT_ESTIMATED.items() if getattr(config, name) is None}
    if config.train_iters is None and config.train_samples is None:
        fill["train_iters"] = 1
    return dataclasses.replace(config, **fill)


def number(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name}={text} in the environment is not a number: start the ranks with "
                        "torchrun, which sets it")
    return int(text)


def notes(argv: Sequence[str], config: Config) -> list[str]:
    """What to tell the user about the command line: what was derived, what has no effect."""
    lines = [f"{name}: no effect, {why}" for name, why in ALREADY_SO.items() if name in argv]
    words = [word.split("=")[0] for word in argv]
    lines += [f"{name} is called {new} today" for name, new in CALLED_TODAY.items()
              if name in words]
    if "--sequence-parallel" in argv and not config.sequence_parallel:
        lines.append("--sequence-parallel: no effect, there is one tensor-parallel rank")
    for name in ("--use-distributed-optimizer", "--overlap-grad-reduce"):
        if name in argv and config.data_parallel_size == 1:
            lines.append(f"{name}: no effect, there is one data-parallel rank")
    if config.bf16:
        lines.append("accumulate and all-reduce gradients in fp32 for bfloat16 data type.")
    lines.append(f"using torch.{config.params_type} for parameters ...")
    if "--global-batch-size" not in words:
        lines.insert(0, f"setting global batch size to {config.global_batch_size}")
    return lines

"""Parse the command line into a checked Config; flags that do not exist are refused by name."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from minimegatron.arguments.checks import check
from minimegatron.arguments.flag import Flag, table_of
from minimegatron.arguments.presets import expand
from minimegatron.arguments.table import Config, EstimateConfig, Planning
from minimegatron.errors import UserError


class Parser(argparse.ArgumentParser):
    """argparse, but an error is a UserError: the caller decides who prints it, and how."""

    def error(self, message: str) -> None:
        raise UserError(message)


def build_parser(config: type[Config] = Config) -> Parser:
    """Return the parser of the flags of `config`; --help shows them by topic."""
    parser = Parser(prog="pretrain_gpt.py", allow_abbrev=False,
                    description="Train a GPT with Megatron-LM's command line. --estimate "
                                "predicts its time and memory instead (--estimate --help).",
                    epilog="Megatron-LM's other flags have no effect here, or are refused with "
                           "the reason; `lab explain SCRIPT` lists them.")
    table = table_of(config)
    for topic in reversed(config.__mro__):
        flags = [table[name] for name in vars(topic).get("__annotations__", ())
                 if not table_of(topic)[name].derived]
        if flags:
            group = parser.add_argument_group((topic.__doc__ or topic.__name__).rstrip("."))
            for flag in flags:
                add_flag(group, flag)
    return parser


def add_flag(group: argparse._ArgumentGroup, flag: Flag) -> None:
    """Add a flag of the table to a group of the parser."""
    if isinstance(flag.default, bool):
        group.add_argument(*flag.spellings, dest=flag.name, help=flag.help,
                           action="store_false" if flag.default else "store_true")
        return
    shown = "" if flag.default in (None, "") else f" (default: {flag.default})".replace("%", "%%")
    group.add_argument(*flag.spellings, dest=flag.name, help=flag.help + shown,
                       default=flag.default, type=flag.type, choices=flag.choices or None,
                       nargs=flag.nargs, required=flag.required)


def parse_arguments(argv: Sequence[str], env: Mapping[str, str] = os.environ,
                    config: type[Config] = Config) -> Config:
    """Parse and check `argv` for the rank and the world size in `env` (RANK, WORLD_SIZE).

    `config` is the dataclass that declares the flags. Raises UserError with the flag, its value,
    and the nearest valid value.
    """
    return check(parse_unchecked(argv, require_all=True, config=config),
                 rank=number_in(env, "RANK", 0), world_size=number_in(env, "WORLD_SIZE", 1))


def parse_unchecked(argv: Sequence[str], require_all: bool = False,
                    config: type[Config] = Config) -> Config:
    """Parse `argv` without any check between flags: a field that no flag sets has its default.

    Raises UserError; with `require_all`, also for a required flag that is not given.
    """
    argv, parser, table = expand(argv), build_parser(config), table_of(config)
    required = [action for action in parser._actions if action.required]
    for action in required:
        action.required = False
    words = {part for word in argv for part in word.split("=")}
    required = [each for each in required if require_all and words.isdisjoint(
        table[each.dest].unless) and not (
        "--estimate" in argv and table[each.dest].estimate_with is not None)]
    try:
        values, extras = parser.parse_known_args(argv)
    except UserError:
        values, extras = None, []
    if extras or values is None or any(getattr(values, each.dest) is None for each in required):
        from minimegatron.arguments.unknown import sort_out_or_refuse

        values = parser.parse_args(sort_out_or_refuse(argv, parser, required))
    return config(**{name: tuple(value) if isinstance(value, list) else value
                     for name, value in vars(values).items() if name in table})


def parse_estimate(argv: Sequence[str]) -> EstimateConfig:
    """Parse and check a command line with --estimate. Raises UserError."""
    config = complete_for_estimate(parse_unchecked(argv, require_all=True, config=EstimateConfig))
    return check(config, rank=0, world_size=config.world_size)


def parse_command_line(argv: Sequence[str], env: Mapping[str, str]) -> EstimateConfig:
    """Parse and check a command line of pretrain_gpt.py, with or without --estimate.

    `env` has the rank and the world size (RANK, WORLD_SIZE). Raises UserError.
    """
    if "--estimate" in argv:
        return parse_estimate(argv)
    return parse_arguments(argv, env, EstimateConfig)


def complete_for_estimate(config: EstimateConfig) -> EstimateConfig:
    """Fill in the flags that training needs and an estimate does not, and check its own flags.

    Raises:
        UserError: a flag of --estimate has a value that cannot be used.
    """
    table = table_of(type(config))
    for flag in (table[field.name] for field in fields(Planning)):
        value = getattr(config, flag.name)
        for bound in flag.bounds:
            if value is not None and not (bound.accepts(value) and value < math.inf):
                raise UserError(f"{flag.spelling} {value}: must be a number of at least "
                                f"{bound.low}")
    if not config.device.startswith("virtual"):
        raise UserError(f"--estimate with --device {config.device}: only virtual GPUs "
                        "can be estimated; nearest: --device virtual:a100-80gb")
    if config.plot is not None and not config.plot.endswith((".svg", ".png")):
        raise UserError(f"--plot {config.plot}: a file that ends in .svg or .png; nearest: "
                        f"--plot {config.plot.rpartition('.')[0] or config.plot}.svg")
    if config.plot is not None and not os.path.isdir(os.path.dirname(config.plot) or "."):
        raise UserError(f"--plot {config.plot}: there is no folder {os.path.dirname(config.plot)}")
    fill = {flag.name: flag.estimate_with for flag in table.values()
            if flag.estimate_with is not None and getattr(config, flag.name) is None}
    if config.train_iters is None and config.train_samples is None:
        fill["train_iters"] = 1
    return replace(config, **fill)


def number_in(env: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable that a launcher sets, such as WORLD_SIZE. Raises UserError."""
    text = env.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UserError(f"{name}={text} in the environment is not a number: start the ranks with "
                        "torchrun, which sets it")
    return int(text)


def notes(argv: Sequence[str], config: Config) -> list[str]:
    """Return notes for the user: values that were derived, and flags without effect."""
    words, lines = [word.split("=")[0] for word in argv], []
    parser = build_parser(type(config))
    if any(word.startswith("--") and word not in parser._option_string_actions for word in words):
        from minimegatron.arguments.unknown import harmless_line, sort_out

        lines.append(harmless_line(sort_out(argv, parser)[1]))
    lines += [f"{name} is called {new} today" for flag in table_of(type(config)).values()
              for name, new in (flag.today or {}).items() if name in words]
    if "--sequence-parallel" in argv and not config.sequence_parallel:
        lines.append("--sequence-parallel: no effect, there is one tensor-parallel rank")
    scatters = "--scatter-gather-tensors-in-pipeline"
    if scatters in argv and not config.scatter_gather_tensors_in_pipeline:
        lines.append(f"{scatters}: no effect; it needs several stages and tensor-parallel ranks, "
                     "and no --sequence-parallel")
    for name in ("--use-distributed-optimizer", "--overlap-grad-reduce", "--fp8-param-gather",
                 "--data-parallel-sharding-strategy", "--overlap-param-gather"):
        if name in words and config.data_parallel_size == 1:
            lines.append(f"{name}: no effect, there is one data-parallel rank")
        elif name in words and config.sharding_size == 1 and name != "--overlap-grad-reduce":
            lines.append(f"{name}: no effect, an instance has one data-parallel rank")
    if config.bf16:
        lines.append("accumulate and all-reduce gradients in fp32 for bfloat16 data type.")
    lines.append(f"using torch.{config.params_type} for parameters ...")
    if "--global-batch-size" not in words:
        lines.insert(0, f"setting global batch size to {config.global_batch_size}")
    return lines

"""Explain what the flags of a script written for Megatron-LM mean here: `lab explain`."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from labcore.errors import LabError
from labcore.terminal import visible

HELP = "print what the flags of a script for Megatron-LM mean here"
ACCEPTED, HARMLESS, REFUSED, UNKNOWN = "accepted", "no effect", "refused", "unknown"
TOKENIZE = "preprocess_data.py"
# Programs that start others: a word that begins with - belongs to them until a .py file.
LAUNCHERS = re.compile(r"(?:^|[\s;&|(`])(srun|torchrun|python[\d.]*|mpirun|deepspeed|nsys)\b")
# Flags of torchrun, which scripts also collect in variables.
LAUNCH = re.compile(
    r"--(nnodes|nproc[_-]per[_-]node|node[_-]rank|master[_-](addr|port)|rdzv[_-]\w+|role|tee|"
    r"max[_-]restarts|monitor[_-]interval|start[_-]method|log[_-]dir|redirects|standalone|"
    r"local[_-]addr|no[_-]python|run[_-]path|module|use[_-]env)")
FLAG = re.compile(r"(?<![\w$=/.{-])(--[A-Za-z][\w-]*)(?:=|(?![\w-]))")
NEXT = re.compile(r"\s(?:\||&&|\|\|)\s|;\s")  # the next command of a line
END = re.compile(r"[\"')\n;&|]|(?<!\S)-{1,2}[A-Za-z]|>")
WIDTH = 100


class ExplainedFlag(NamedTuple):
    """A flag of a script, with what it means here.

    Attributes:
        name: the flag.
        value: its value in the script, as it is written there.
        verdict: ACCEPTED, HARMLESS, REFUSED, or UNKNOWN.
        meaning: what it does here, why not, and what to write instead.
    """

    name: str
    value: str
    verdict: str
    meaning: str


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("explain", help=HELP, description=HELP)
    parser.add_argument("script", metavar="SCRIPT", help="a shell script that starts "
                        "pretrain_gpt.py or preprocess_data.py, or - for standard input")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print a table of a script's flags. Raises LabError if it cannot be read or has none."""
    try:
        text = (sys.stdin.read() if arguments.script == "-"
                else Path(arguments.script).read_text(errors="replace"))
    except OSError as error:
        raise LabError(f"{arguments.script}: {error.strerror}") from error
    flags = explain(text)
    if not flags:
        raise LabError(f"{arguments.script}: no flags of pretrain_gpt.py or {TOKENIZE}, such as "
                       "--num-layers 12")
    print(table(flags))


def explain(script: str) -> list[ExplainedFlag]:
    """Return a script's flags in their order, each once, without those of launchers."""
    from corpus_tools.foreign_flags import PREPROCESS
    from corpus_tools.preprocess import build_parser as tokenizer_parser
    from minimegatron.arguments.parse import build_parser
    from minimegatron.arguments.table import EstimateConfig
    from minimegatron.arguments.unknown import TRAINER, errors_of, suggestion
    from minimegatron.arguments.unknown import meaning as meaning_of

    parser, foreign = build_parser(EstimateConfig), TRAINER
    if TOKENIZE in script and "pretrain_gpt" not in script:
        parser, foreign = tokenizer_parser(), PREPROCESS
    for action in parser._actions:
        action.required = False
    actions = {option: action for action in parser._actions for option in action.option_strings}
    explained = {}
    for name, value in flags_of(script):
        words = value.split()
        if name in actions:
            action = actions[name]
            is_text = action.type in (None, str) and not action.choices
            errors = errors_of(parser, [name, *words]) if is_text or "$" not in value else []
            verdict = REFUSED if errors else ACCEPTED
            meaning = (errors[0].partition(": ")[2] if errors else
                       (action.help or "").replace("%%", "%"))
        elif found := foreign.find(name, words):
            verdict = HARMLESS if found.harmless else REFUSED
            meaning = meaning_of(found)
            if "$" in value and name in foreign.harmless_values:
                meaning += f"; no effect with {' or '.join(foreign.harmless_values[name].split())}"
        else:
            near = suggestion(name, {*actions, *foreign.values})
            verdict, meaning = UNKNOWN, f"did you mean {near}?" if near else "no such flag"
        explained[name] = ExplainedFlag(name, value, verdict, meaning)
    return list(explained.values())


def flags_of(script: str) -> Iterator[tuple[str, str]]:
    """Yield the flags in a script that are not a launcher's, with the values as they are written.

    A flag counts wherever it is: in a command, an array, or a string of a variable.
    """
    text = re.sub(r"\\\r?\n[ \t]*", " ", script)
    text = re.sub(r"(?m)(^|\s)#.*$", "", text)
    for line in text.splitlines():
        if launcher := LAUNCHERS.search(line):
            program = re.search(r"\S+\.py\b", line[launcher.end():])
            own = line[launcher.end() + program.end():] if program else ""
            line = NEXT.split(own)[0]
        for match in FLAG.finditer(line):
            if LAUNCH.fullmatch(match[1]):
                continue
            rest = line[match.end():].lstrip()
            quoted = re.match(r"\"[^\"]*\"|'[^']*'", rest)
            value = quoted[0] if quoted else END.split(rest)[0]
            yield match[1], " ".join(_words(value))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def table(flags: list[ExplainedFlag]) -> str:
    """Return a table of flags, those that need attention first, and a line with their numbers."""
    order = [REFUSED, UNKNOWN, HARMLESS, ACCEPTED]
    flags = sorted(flags, key=lambda flag: order.index(flag.verdict))
    shown = [visible(f"{flag.name} {flag.value}"[:44], " ") for flag in flags]
    left, middle = max(map(len, shown)), max(len(flag.verdict) for flag in flags)
    indent = " " * (left + middle + 4)
    lines = [textwrap.fill(f"{name:{left}}  {flag.verdict:{middle}}  {flag.meaning}", WIDTH,
                           subsequent_indent=indent, break_on_hyphens=False)
             for name, flag in zip(shown, flags, strict=True)]
    counts = [f"{number} {verdict}" for verdict in reversed(order)
              if (number := sum(flag.verdict == verdict for flag in flags))]
    return "\n".join([*lines, f"{len(flags)} flags: {', '.join(counts)}"])

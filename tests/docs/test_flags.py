"""Commands and flags of `lab`, the trainer, and `make` on the pages are those that exist."""

from __future__ import annotations

import argparse
import re
import shlex
from functools import cache

import pytest
from markdown_it import MarkdownIt

from corpus_tools.preprocess import build_parser as preprocess_parser
from lab import cli
from lab.mytrainer.flags import LoopConfig
from minimegatron.arguments.parse import build_parser
from minimegatron.arguments.table import EstimateConfig
from minimegatron.generate import build_parser as generate_parser
from tests.docs.pages import ROOT, blocks, pages
from virtualgpu.launch import command as virtualrun

NAMES = [str(page.relative_to(ROOT)) for page in pages()]
# Programs of ours whose parsers are not one object, and flags of others' programs.
OURS = ("code/examples/*.py", "code/virtualgpu/smi/*.py", "tools/*.py", "benchmarks/*.py")
FOREIGN = {"docker": "--build --build-arg --cap-add --cap-drop --memory --memory-swap --privileged "
                     "--read-only --security-opt --tmpfs --user",
           "slurm": "--account --begin --cpu-bind --cpus-per-task --dependency --gpus-per-task "
                    "--gres --het-group --mem --no-requeue --time --wait --wait-all-nodes",
           "torchrun": "--nnodes --nproc_per_node --rdzv_id --role --shutdown-timeout --tee",
           "nbgrader": "--exporter", "megatron-lm": "--mock-data --transformer-impl"}
FLAG = re.compile(r"(?<![\w-])--[a-z][\w-]*")


def spans(text: str) -> list[str]:
    """All that stands in backquotes, and every command of the page's blocks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    results = [child.content for token in tokens for child in token.children or []
               if child.type == "code_inline"]
    commands = [step.command for block in blocks(text, "page") for step in block.steps]
    return results + [line for command in commands
                      for line in command.replace("\\\n", " ").splitlines()]


def quoted_words(command: str) -> list[str]:
    """The words as a shell has them; of half a command, with a quote left open, as they stand."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def lab_commands(text: str) -> list[list[str]]:
    """The words after `lab` of every command that begins with it, one list for each."""
    collected = []
    for span in spans(text):
        for command in re.split(r"&&|\|\||[|;]| #|\$\(", span):
            words = quoted_words(command.replace(')"', ""))
            while words and words[0] in ("python3", "tools/bootstrap.py", "eval"):
                words = words[1:]
            if len(words) > 1 and words[0] in ("lab", ".venv/bin/lab"):
                collected.append(words[1:])
    return collected


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((action.choices for action in parser._actions
                 if isinstance(action, argparse._SubParsersAction)), {})


@cache
def lab_parser() -> argparse.ArgumentParser:
    return cli.build_parser()


def refused(words: list[str]) -> str | None:
    """Why `lab` would not take these words: its subcommands and the names of its flags."""
    parser, rest = lab_parser(), list(words)
    while known := subparsers(parser):
        if not rest:
            return None  # the name of a group of commands
        if rest[0] not in known:
            return f"{parser.prog} has no {rest[0]!r}"
        parser = known[rest.pop(0).rstrip(",")]
        if parser.prog == "lab estimate":  # it hands the trainer's flags on
            return next((f"{flag} is no flag of the trainer" for flag in map(FLAG.match, rest)
                         if flag and flag[0] not in every_flag()), None)
        if rest and rest[0] == "...":
            return None
    unknown = [word for word in rest if FLAG.match(word) and " " not in word
               and FLAG.match(word)[0] not in parser._option_string_actions]
    return f"{parser.prog} has no {unknown[0]}" if unknown else None


@cache
def every_flag() -> set[str]:
    """Return the flags of both trainers, preprocessing, generation, virtualrun, and `lab`."""
    waiting = [lab_parser(), build_parser(), build_parser(EstimateConfig), build_parser(LoopConfig),
               preprocess_parser(), generate_parser(), virtualrun.parser()]
    collected = set()
    while waiting:
        parser = waiting.pop()
        collected |= set(parser._option_string_actions)
        waiting += subparsers(parser).values()
    return collected


@pytest.mark.parametrize("name", NAMES)
def test_lab_takes_what_the_page_types(name):
    assert not [f"{' '.join(words)}: {said}" for words in lab_commands((ROOT / name).read_text())
                if (said := refused(words))]


@pytest.mark.parametrize(("text", "said"), [
    ("`lab grade --everybody`", "lab grade has no --everybody"),
    ("`lab garde 03`", "lab has no 'garde'"),
    ("    lab cluster go", "lab cluster has no 'go'"),
    ("    cd x && .venv/bin/lab top --twice | cat", "lab top has no --twice"),
    ('    eval "$(lab cluster env --for me)"', "lab cluster env has no --for")])
def test_what_lab_does_not_take_is_seen(text, said):
    (words,) = lab_commands(text)
    assert refused(words) == said


@cache
def flags_elsewhere() -> set[str]:
    files = [path.read_text() for pattern in OURS for path in ROOT.glob(pattern)]
    return {flag for text in files for flag in re.findall(r"""["'](--[a-z][\w-]*)""", text)} | {
        flag for flags in FOREIGN.values() for flag in flags.split()}


def unknown_flags(text: str) -> list[str]:
    """Return flags that no program has, in code spans that begin with one or start the trainer."""
    return [flag for span in spans(text) if span.startswith("--") or "pretrain_gpt.py" in span
            for flag in FLAG.findall(span) if flag not in every_flag() | flags_elsewhere()]


@pytest.mark.parametrize("name", NAMES)
def test_a_flag_that_the_page_names_is_a_programs(name):
    assert not unknown_flags((ROOT / name).read_text())


def test_a_flag_that_nobody_takes_is_seen():
    page = "`--train-itters 3`, `--seed 1`\n\n    python code/pretrain_gpt.py --fp17 --bf16\n"
    assert unknown_flags(page) == ["--train-itters", "--fp17"]


@pytest.mark.parametrize("name", NAMES)
def test_make_has_the_targets_that_the_page_names(name):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {found[1] for span in spans((ROOT / name).read_text())
             if (found := re.match(r"make ([\w-]+)", span))}
    assert named <= targets

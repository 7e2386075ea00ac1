"""Words of the command line that no flag of the parser takes: what each of them means here.

A flag of Megatron-LM has no effect, and is accepted, or is refused with the reason and what to
write instead (foreign.py). Any other word is a typing error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

from minimegatron.arguments import foreign, upstream
from minimegatron.arguments.flag import spelled
from minimegatron.arguments.table import Planning
from minimegatron.errors import UserError

FLAG = re.compile(r"--?[A-Za-z]")  # not a negative number


@dataclass(frozen=True)
class ForeignFlag:
    """A flag of Megatron-LM that the program does not implement.

    Attributes:
        harmless: whether it is accepted, because the result is the same without it.
        reason: why it has no effect, or is refused.
        instead: what to write instead; empty if there is nothing.
    """

    harmless: bool
    reason: str
    instead: str = ""


@dataclass(frozen=True)
class ForeignFlags:
    """All flags of one of Megatron-LM's programs that ours does not implement.

    Attributes:
        values: how many values each of the program's flags takes: 0, 1, or *.
        no_effect: harmless flags, by the reason; a name that ends in * stands for several.
        harmless_values: values with which a refused flag is harmless.
        refused: refused flags, by the reason.
        instead: what to write instead of a refused flag.
    """

    values: Mapping[str, str]
    no_effect: Mapping[str, str]
    harmless_values: Mapping[str, str]
    refused: Mapping[str, str]
    instead: Mapping[str, str]

    @cached_property
    def harmless(self) -> dict[str, str]:
        """The reason of each harmless flag."""
        return self._expanded(self.no_effect)

    @cached_property
    def reasons(self) -> dict[str, str]:
        """The reason of each refused flag."""
        return self._expanded(self.refused)

    def _expanded(self, names_by_reason: Mapping[str, str]) -> dict[str, str]:
        reasons = {}
        for reason, names in names_by_reason.items():
            for name in names.split():
                start = name.removesuffix("*")
                reasons |= {flag: reason for flag in self.values
                            if flag == name or (start != name and flag.startswith(start))}
        return reasons

    def find(self, name: str, values: Sequence[str]) -> ForeignFlag | None:
        """Return what a flag with these values means; None if Megatron-LM has no such flag, or if
        it is implemented."""
        if name in self.harmless:
            return ForeignFlag(True, self.harmless[name])
        accepted = self.harmless_values.get(name, "").split()
        if values and set(values) <= set(accepted):
            return ForeignFlag(True, f"{' '.join(values)} is what happens anyway")
        if name not in self.reasons:
            return None
        return ForeignFlag(False, self.reasons[name], self.instead.get(name, ""))


def values_of(names: Mapping[str, str]) -> dict[str, str]:
    """Return how many values each flag takes, from a table like upstream.NAMES."""
    return {name: kind for kind, text in names.items() for name in text.split()}


TRAINER = ForeignFlags(values_of(upstream.NAMES), foreign.NO_EFFECT, foreign.HARMLESS_VALUES,
                       foreign.REFUSED, foreign.INSTEAD)


def sort_out(argv: Sequence[str], parser: argparse.ArgumentParser,
             flags: ForeignFlags = TRAINER) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the words for the parser, the harmless flags with reasons, and an error for each
    other word.

    Args:
        argv: the command line.
        parser: the parser of our flags, none of them required.
        flags: the other flags of Megatron-LM's program.
    """
    known = {option for action in parser._actions for option in action.option_strings}
    words: list[str] = []
    harmless: dict[str, str] = {}
    errors: list[str] = []
    for word, values in split_flags(argv):
        name, equals, value = word.partition("=")
        taken = [value, *values] if equals else values
        if name in known:
            words += [word, *values]
            errors += errors_of(parser, [word, *values])
        elif found := flags.find(name, taken):
            if found.harmless:
                harmless[name] = found.reason
            else:
                errors.append(refusal(name, taken, found))
        else:
            errors.append(unknown(word or values[0], {*known, *flags.values}, parser.prog))
    return words, harmless, errors


def sort_out_or_refuse(argv: Sequence[str], parser: argparse.ArgumentParser,
                       required: Sequence[argparse.Action], flags: ForeignFlags = TRAINER
                       ) -> list[str]:
    """Return the command line without harmless flags.

    Args:
        argv: the command line.
        parser: the parser, none of whose flags is required.
        required: the flags without which the program cannot run.
        flags: the other flags of Megatron-LM's program.

    Raises:
        UserError: something is wrong; a line for each problem.
    """
    words, _, errors = sort_out(argv, parser, flags)
    given = {word.partition("=")[0] for word in argv}
    named = set(re.findall(r"--[\w-]+", " ".join(errors)))  # such as the right spelling
    missing = [action for action in required
               if not (given | named) & {*action.option_strings}]
    if missing:
        names = ", ".join("/".join(action.option_strings) for action in missing)
        errors.append(f"the following arguments are required: {names}")
    if errors:
        raise UserError("\n".join(dict.fromkeys(errors)))
    return words


def errors_of(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Return what is wrong with one of the parser's flags and its values."""
    try:
        _, extras = parser.parse_known_args(words)
    except UserError as error:
        return [str(error)]
    if not extras:
        return []
    text = " ".join(words)[:200]
    if words[0] == "--data-path":
        return [f"{text}: a blend of several data sets, but {parser.prog} reads one; nearest: "
                f"--data-path {extras[0]}"]
    return [f"{text}: unrecognized argument {extras[0]}, because {words[0]} takes no such value"]


def harmless_line(harmless: Mapping[str, str]) -> str:
    """Return a line about flags without effect, from their reasons."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in harmless.items():
        by_reason.setdefault(reason, []).append(name)
    return "no effect here: " + "; ".join(
        f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def split_flags(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with the words that follow it; words before the first flag follow ""."""
    name, values = "", []
    for word in argv:
        if FLAG.match(word):
            if name or values:
                yield name, values
            name, values = word, []
        else:
            values.append(word)
    if name or values:
        yield name, values


def refusal(name: str, values: Sequence[str], flag: ForeignFlag) -> str:
    """Return the error for a refused flag."""
    shown = " ".join((name, *values))[:80]
    if flag.reason == "it is no longer valid":  # Megatron-LM's own words
        return f"{name} argument is no longer valid, use {flag.instead} instead"
    if flag.reason == "another name":
        return f"{shown}: {meaning(flag)}"
    advice = "" if flag.instead else "; leave it out"
    return f"{shown}: a flag of Megatron-LM, but {meaning(flag)}{advice}"


def meaning(flag: ForeignFlag) -> str:
    """Return what a flag of Megatron-LM means here, in a few words."""
    if flag.reason == "another name":
        return f"here it is called {flag.instead}"
    return flag.reason + (f"; use {flag.instead} instead" if flag.instead else "")


def unknown(word: str, known: Collection[str], program: str = "pretrain_gpt.py") -> str:
    """Return the error for a word that neither the program nor Megatron-LM knows."""
    name = word.partition("=")[0]
    if name == "--estimate":
        return "--estimate trains nothing: give it to pretrain_gpt.py"
    if name in [spelled(field.name) for field in fields(Planning)]:
        return f"{name} belongs to --estimate, which is not given"
    if word.startswith("--") and len(word.split()) > 1:
        return (f"unrecognized argument {word[:40]!r}...; it is one word, because the shell "
                'does not split a variable in quotes: write $FLAGS instead of "$FLAGS"')
    near = suggestion(name, known)
    hint = f"did you mean {near}?" if near else f"{program} --help lists the flags"
    return f"unrecognized argument {word}; {hint}"


def suggestion(name: str, known: Collection[str]) -> str:
    """Return the flag that a word is a typing error or the beginning of; "" if there is none."""
    plain = name.replace("_", "-").lower()
    same = [flag for flag in known if flag.replace("_", "-").lower() == plain]
    longer = [flag for flag in known if flag.startswith(f"{plain}-")]
    if same or len(longer) == 1:
        return (same or longer)[0]
    limit = 1 if len(plain) < 9 else 2 if len(plain) < 24 else 3
    near = min(known, key=lambda flag: (distance(plain, flag), flag))
    return near if FLAG.match(name) and distance(plain, near) <= limit else ""


def distance(one: str, other: str) -> int:
    """Return how many letters to insert, delete, replace, or swap with their neighbor."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = row, before, [i]
        for j, target in enumerate(other, start=1):
            cost = min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != target))
            if i > 1 and j > 1 and (letter, one[i - 2]) == (other[j - 2], target):
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]

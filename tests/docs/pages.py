"""The commands that a page shows, and what its author says about running them.

A block is indented by four, or fenced. `console` has commands after "$ " and what they print;
`bash` and indented blocks are commands alone. Every one of them is run unless a comment before it
says why not, so that a block which is neither run nor excused cannot be:

    <!-- not run: needs a site's Slurm -->
    <!-- run elsewhere: tests/lab/test_start.py -->
    <!-- run: in=checkout; until=TEXT; exit=1; stress -->

`in` is a place of session.PLACES, `until` what a program prints that does not end by itself,
`exit` the code that the last command ends with, `stress` leaves a block to `make stress`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("workspace", "checkout", "scratch", "new")
COMMANDS = ("console", "bash")
OTHERS = ("csv", "dockerfile", "ini", "json", "python", "text", "toml", "yaml")
COMMENT = re.compile(r"<!-- (not run|run elsewhere|run): (.+) -->")


class PageError(Exception):
    """A block that cannot be read. The message has its place."""


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docker" / "README.md",
            *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True)
class Orders:
    """The instructions in the comment before a block."""

    excuse: str = ""  # why it is not run
    elsewhere: str = ""  # the tests that run it
    place: str = "workspace"
    until: str = ""
    code: int = 0
    stress: bool = False

    @property
    def run(self) -> bool:
        return not self.excuse and not self.elsewhere


@dataclass(frozen=True)
class Step:
    """A command, and the lines that the page shows below it."""

    command: str
    output: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    where: str  # docs/students.md:12
    steps: tuple[Step, ...]
    orders: Orders = field(default_factory=Orders)


def blocks(text: str, name: str) -> list[Block]:
    """The blocks of commands, in their order. Raises PageError."""
    result, comment = [], None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block" and COMMENT.search(token.content):
            comment = (token.content, f"{name}:{token.map[0] + 1}")
            continue
        if token.type in ("fence", "code_block"):
            where = f"{name}:{token.map[0] + 1}"
            orders = read_orders(*comment) if comment else Orders()
            if steps := read_steps(token, where):
                result.append(Block(where, tuple(steps), orders))
            elif comment:
                raise PageError(f"{where}: {comment[0].strip()} stands before a block that is no "
                                "command")
        elif comment and token.type not in ("html_block",):
            raise PageError(f"{comment[1]}: {comment[0].strip()} stands before no block")
        comment = None
    if comment:
        raise PageError(f"{comment[1]}: {comment[0].strip()} stands before no block")
    return result


def read_orders(content: str, where: str) -> Orders:
    kind, text = COMMENT.fullmatch(content.strip()).groups()
    if kind == "not run":
        return Orders(excuse=text)
    if kind == "run elsewhere":
        for path in text.split(", "):
            if not (ROOT / path).is_file():
                raise PageError(f"{where}: there is no {path}")
        return Orders(elsewhere=text)
    return Orders(**dict(order(part.strip(), where) for part in text.split(";")))


def order(part: str, where: str) -> tuple[str, object]:
    name, _, value = part.partition("=")
    if name == "in" and value in PLACES:
        return "place", value
    if name == "until" and value:
        return "until", value
    if name == "exit" and value.isdecimal():
        return "code", int(value)
    if part == "stress":
        return "stress", True
    raise PageError(f"{where}: {part!r} is none of in={'|'.join(PLACES)}, until=TEXT, exit=N, "
                    "stress")


def read_steps(token, where: str) -> list[Step]:
    """None for a block that is no command."""
    if token.type == "code_block":
        return [Step(token.content.rstrip())]
    language = token.info.split(" ")[0]
    if language == "bash":
        return [Step(token.content.rstrip())]
    if language == "console":
        return console(token.content.splitlines(), where)
    if language not in OTHERS:
        raise PageError(f"{where}: a fence of {language or 'no language'!r}; say one of "
                        f"{', '.join((*COMMANDS, *OTHERS))}")
    return []


def console(lines: list[str], where: str) -> list[Step]:
    steps: list[tuple[list[str], list[str]]] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append(([line[2:]], []))
        elif not steps:
            raise PageError(f"{where}: a console begins with a command, '$ ...', not with {line!r}")
        elif steps[-1][0][-1].endswith("\\") and not steps[-1][1]:
            steps[-1][0].append(line)
        elif line.strip():
            steps[-1][1].append(line)
    if not steps:
        raise PageError(f"{where}: a console without a command")
    return [Step("\n".join(command), tuple(output)) for command, output in steps]


def shape(line: str) -> re.Pattern[str]:
    """Return the pattern of an output line: numbers and blanks are free, `...` is anything."""
    parts = re.split(r"(\.\.\.|\s+|\d+(?:[.,:]\d+)*)", line.strip())
    free = {"...": ".*"}
    return re.compile("".join(
        free.get(part) or (r"\s+" if part.isspace() else r"\d+(?:[.,:]\d+)*" if part[:1].isdigit()
                           else re.escape(part)) for part in parts if part))


def missing(shown: tuple[str, ...], printed: str) -> str | None:
    """The first line that the page shows and the command did not print, in this order."""
    lines = iter(printed.splitlines())
    for line in shown:
        pattern = shape(line)
        if not any(pattern.search(one) for one in lines):
            return line
    return None

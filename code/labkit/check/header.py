"""Read the header of a job script: the #SBATCH options of each component of its job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from labkit.check import options
from labkit.check.allocation import MOST_COMPONENTS

# The end of a here-document: a word behind << or <<-, which <<< is not. Quoted or not.
HERE_DOCUMENT = re.compile(r"""(?<!<)<<-?[ \t]*\\?(['"]?)([A-Za-z_][\w.-]*)\1""")
OPPOSITES = {"requeue": "no-requeue", "no-requeue": "requeue"}  # the later one holds
SEPARATOR = re.compile(r"#SBATCH\s+(het|pack)job(\s.*|$)")


def directives(script: str) -> tuple[list[dict[str, str]], list[str]]:
    """Return the options that sbatch reads from a script, and notes on lines that it ignores.

    The options are those of each component of a heterogeneous job; any other job has one.
    """
    components: list[dict[str, str]] = [{}]
    notes: list[str] = []
    lines = script.splitlines()
    if not lines or not lines[0].startswith("#!"):
        notes.append("sbatch refuses a script whose first line does not begin with #! : "
                     "begin with #!/bin/bash")
    reading, ends = True, []  # the ends of the here-documents that the next lines are in
    for number, line in enumerate(lines, 1):
        if ends:
            if line.lstrip("\t") == ends[0]:
                del ends[0]
            continue
        if re.match(r"#\s+SBATCH\s|\s+#\s*SBATCH\s|#sbatch\s", line):
            notes.append(f"line {number}: Slurm treats {line.strip()!r} as a comment: "
                         "it must begin with #SBATCH, without spaces before or in it")
        elif re.match(r"#SBATCH\b", line):
            if not reading:
                notes.append(f"line {number}: Slurm does not read {line!r}: "
                             "#SBATCH lines come before the first command")
                continue
            if separator := SEPARATOR.match(line):
                notes += _separator_notes(separator, number)
                components.append({name: value for name, value in components[-1].items()
                                   if name in options.INHERITED})
            else:
                _read_directive(line, number, components[-1], notes)
        elif line.strip() and not line.startswith("#"):
            reading = False
            ends = [match[2] for match in HERE_DOCUMENT.finditer(line)]
    if len(components) > MOST_COMPONENTS:
        notes.append(f"#SBATCH hetjob: {len(components)} components, and Slurm accepts at most "
                     f"{MOST_COMPONENTS}")
    return components[:MOST_COMPONENTS], notes


def _separator_notes(separator: re.Match[str], number: int) -> Iterator[str]:
    """Yield what is wrong with a line that ends a component's options."""
    if separator[1] == "pack":
        yield (f"line {number}: #SBATCH packjob is the deprecated name of #SBATCH hetjob: "
               "write that")
    rest = separator[2].partition("#")[0].strip()
    if rest:
        yield (f"line {number}: Slurm does not read {rest!r}: #SBATCH hetjob stands alone, between "
               "the options of two components")


def _read_directive(line: str, number: int, requested: dict[str, str], notes: list[str]) -> None:
    try:
        parsed, rest = options.parse(shlex.split(line[len("#SBATCH"):], comments=True), "sbatch")
        for name, value in parsed.items():
            requested.pop(OPPOSITES.get(name, ""), None)
            requested[name] = value
        if rest:
            notes.append(f"line {number}: sbatch does not understand {rest[0]!r}")
    except (options.BadOption, ValueError) as error:
        notes.append(f"line {number}: {error}")

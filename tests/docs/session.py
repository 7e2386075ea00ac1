"""A page's commands, run from its top to its end in one shell, as its reader types them."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import Block, missing

MARK = "@@@@"
# A program that does not end by itself: run it until it prints a text, then press Ctrl-C. One that
# ends before is tried again for a while, as a reader does: a job's log is not there at once.
UNTIL = r"""
until_it_says() {
  local pid tries
  : > "$1.out"  # grep may be faster than the program's start
  set -m; bash "$1" > "$1.out" 2>&1 & set +m
  pid=$!
  for tries in $(seq 600); do
    if grep -qF -- "$2" "$1.out"; then break; fi
    if ! kill -0 $pid 2>/dev/null; then
      if [ $tries -gt 60 ]; then break; fi
      set -m; bash "$1" > "$1.out" 2>&1 & set +m
      pid=$!
    fi
    sleep 0.2
  done
  kill -INT -- -$pid 2>/dev/null || true
  wait $pid || true
  cat "$1.out"
  grep -qF -- "$2" "$1.out"
}
"""


@dataclass(frozen=True)
class Places:
    """A shell for a page's commands. `new` is an empty workspace, without a cluster."""

    workspace: Path
    checkout: Path
    scratch: Path
    new: Path


def run(blocks: list[Block], places: Places, environment: dict[str, str], folder: Path,
        seconds: float) -> list[str]:
    """Run what is to be run; what went wrong, in the order of the page. The first command that
    fails is the last that runs, as with a reader who follows the page."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = [(block, step) for block in blocks for step in block.steps]
    script = folder / "page.sh"
    script.write_text(text(blocks, places, folder))
    try:
        done = subprocess.run(["bash", script], cwd=places.scratch, env=environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=seconds)
        said, ended = done.stdout, f"exit code {done.returncode}"
    except subprocess.TimeoutExpired as error:
        said, ended = (error.stdout or b"").decode(), f"not over within {seconds:.0f} s"
    outputs = re.split(rf"^{MARK}\n", said, flags=re.MULTILINE)[1:]
    wrong = []
    for number, (block, step) in enumerate(steps):
        if number >= len(outputs) - 1:  # each but the last one that ran is followed by a mark
            last = outputs[-1] if outputs else said
            return [*wrong, f"{block.where}: {step.command}\n{ended}\n{last}"]
        if line := missing(step.output, outputs[number]):
            wrong.append(f"{block.where}: {step.command}\nThe page shows\n  {line}\n"
                         f"but it printed\n{outputs[number]}")
    return wrong


def text(blocks: list[Block], places: Places, folder: Path) -> str:
    """The script: before every step, and after the last, stands a mark in its output."""
    lines, number = ["set -e", UNTIL], 0
    for block in blocks:
        orders = block.orders
        place = getattr(places, orders.place)
        lines += ["(", f"export LAB_HOME='{place}'"] if orders.place == "new" else []
        lines.append(f"cd '{place}'")
        for at, step in enumerate(block.steps):
            path = folder / f"step_{number}.sh"
            path.write_text(step.command + "\n")
            number += 1
            last = at == len(block.steps) - 1
            lines += [f"echo; echo {MARK}",
                      typed(path, orders.until if last else "", orders.code if last else 0)]
        lines += [")"] if orders.place == "new" else []
    return "\n".join([*lines, f"echo; echo {MARK}"]) + "\n"


def typed(path: Path, until: str, code: int) -> str:
    if until:
        return f"until_it_says '{path}' '{until}'"
    if code:
        return f"code=0; (set -e; . '{path}') || code=$?; [ $code = {code} ]"
    return f". '{path}'"

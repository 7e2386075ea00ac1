"""Write the batch scripts of a run, which students can read, change, and submit themselves."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from lab.submit import trainer_flags
from lab.submit.conf import HETEROGENEOUS, JOINED
from lab.submit.layout import Component, Layout
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.terminal import visible

FOLDER = Path("code")  # of the workspace, where the course's own scripts are
MARK = "# lab submit replaces this file unless you change it: "
LOG_INTERVAL = 10
TIMELINE_ITERATION = 3  # the first that is neither the start nor the allocator's
WIDTH = 99


class Script(NamedTuple):
    """A batch script: its path in the workspace, and its text."""

    path: Path
    text: str


def of(layout: Layout) -> list[Script]:
    """Return the scripts of a run in the order of their node ranks: one, or one for each component
    if the components are jobs that join the first."""
    name = layout.conf.name
    if layout.job != JOINED:
        path = FOLDER / f"{name}.sh"
        het = [f"--het-group={','.join(map(str, range(len(layout.components))))} "]
        return [_script(layout, path, own=layout.components, command=f"sbatch {path}",
                        het_group=het[0] if layout.job == HETEROGENEOUS else "")]
    ranks = [0, *accumulate(component.nodes for component in layout.components)]
    found = []
    for part, component in enumerate(layout.components):
        path = FOLDER / (f"{name}.join{part}.sh" if part else f"{name}.master.sh")
        found.append(_script(
            layout, path, own=[component], first_node_rank=ranks[part], join=part,
            master=not part, parts=range(1, len(layout.components)), het_group="",
            command=f"sbatch {path}" + (" MASTER_JOB" if part else "")))
    return found


def _script(layout: Layout, path: Path, own: Sequence[Component], **values: object) -> Script:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader("lab.submit", "."), trim_blocks=True,
                              lstrip_blocks=True, undefined=StrictUndefined,
                              keep_trailing_newline=True)
    conf = layout.conf
    groups = {name: _wrapped(name, flags)
              for name, flags in trainer_flags.groups(layout).items() if flags}
    text = environment.get_template("script.sh.j2").render(
        {"join": 0, "master": False, "conf": conf, "components": layout.components,
         "file": visible(conf.file.name), "groups": groups, "nodes": layout.nodes,
         "title": title(layout),
         "own": own,
         # The same on all nodes, since a step's option holds for each of its components.
         "cpus": max(component.per_node for component in own),
         "arrays": " ".join(f'"${{{name}[@]}}"' for name in groups),
         "log_interval": min(LOG_INTERVAL, conf.iterations),
         "timeline_iteration": min(TIMELINE_ITERATION, conf.iterations), **values})
    return Script(path, text + MARK + _digest(text) + "\n")


def title(layout: Layout) -> str:
    """Return a line about the run."""
    conf, shape = layout.conf, layout.conf.shape
    return (f"GPT-2 {conf.model}, {shape.layers} layers, hidden size {shape.hidden_size}: "
            f"tensor {conf.tensor_parallel} x data {layout.data_parallel} x "
            f"pipeline {conf.pipeline_parallel} parallel.")


def _wrapped(name: str, flags: Sequence[str]) -> str:
    """Return the words of a bash array, on lines that are aligned below its first word."""
    indent = " " * (len(name) + 2)
    lines: list[str] = []
    for word in map(shlex.quote, flags):  # whole words: a quoted one may contain white space
        if lines and len(indent) + len(lines[-1]) + 1 + len(word) <= WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return f"\n{indent}".join(lines)


def write(home: Path, scripts: Sequence[Script]) -> None:
    """Write the scripts to the workspace: all of them, or none.

    Raises:
        LabError: one of the files was changed since `lab submit` wrote it, or is another script.
    """
    for script in scripts:
        path = home / script.path
        if path.exists() and not _is_ours(path):
            raise LabError(
                f"{script.path} is not as lab submit wrote it, so it stays: submit it with sbatch, "
                f'or choose another name; nearest: name = "{path.name.partition(".")[0]}_2"')
    for script in scripts:
        write_atomic(home / script.path, script.text.encode(), 0o755)


def _is_ours(path: Path) -> bool:
    """Return whether `lab submit` wrote the file, and nobody changed it."""
    text, mark, digest = path.read_text(errors="replace").rpartition(MARK)
    return bool(mark) and digest.strip() == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

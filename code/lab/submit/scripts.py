"""Write the batch scripts of a run, which students can read, change, and submit themselves."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from lab.submit import trainer_flags
from lab.submit.conf import HETEROGENEOUS, JOINED
from lab.submit.layout import JobComponent, RunLayout
from labcore.atomic import write_atomic
from labcore.errors import LabError
from labcore.terminal import visible

FOLDER = Path("code")  # the workspace's folder of batch scripts
MARK = "# lab submit replaces this file unless you change it: "
MAX_WIDTH = 99  # characters of a line


class Script(NamedTuple):
    """A batch script: its path in the workspace, and its text."""

    path: Path
    text: str


def render(layout: RunLayout) -> list[Script]:
    """Return the scripts of a run in the order of their node ranks.

    There is one script, or one per component if the components are jobs that join the first.
    """
    name = layout.conf.name
    if layout.job != JOINED:
        path = FOLDER / f"{name}.sh"
        groups = ",".join(map(str, range(len(layout.components))))
        return [_script(layout, path, own=layout.components, command=f"sbatch {path}",
                        het_group=f"--het-group={groups} " if layout.job == HETEROGENEOUS else "")]
    ranks = [0, *accumulate(component.nodes for component in layout.components)]
    scripts = []
    for part, component in enumerate(layout.components):
        path = FOLDER / (f"{name}.join{part}.sh" if part else f"{name}.master.sh")
        scripts.append(_script(
            layout, path, own=[component], first_node_rank=ranks[part], join=part,
            master=not part, parts=range(1, len(layout.components)), het_group="",
            command=f"sbatch {path}" + (" MASTER_JOB" if part else "")))
    return scripts


def _script(layout: RunLayout, path: Path, own: Sequence[JobComponent], **values: object) -> Script:
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
         # The same number on all nodes, because a step's option holds for all its components.
         "cpus": max(component.per_node for component in own),
         "arrays": _arrays(groups),
         **values})
    return Script(path, text + MARK + _digest(text) + "\n")


def title(layout: RunLayout) -> str:
    """Return a line that describes the run."""
    conf, shape = layout.conf, layout.conf.shape
    return (f"GPT-2 {conf.model}, {shape.layers} layers, hidden size {shape.hidden_size}: "
            f"tensor {conf.tensor_parallel} x data {layout.data_parallel} x "
            f"pipeline {conf.pipeline_parallel} parallel.")


def _arrays(names: Iterable[str]) -> str:
    """Return the expansions of bash arrays, in lines of the launcher's command."""
    words = " ".join(f'"${{{name}[@]}}"' for name in names)
    return " \\\n    ".join(textwrap.wrap(words, MAX_WIDTH - 10))


def _wrapped(name: str, flags: Sequence[str]) -> str:
    """Return the shell's words of a bash array, in lines that are aligned with its first word."""
    indent = " " * (len(name) + 2)
    lines: list[str] = []
    for word in flags:  # word by word, because a quoted one may have white space
        if lines and len(indent) + len(lines[-1]) + 1 + len(word) <= MAX_WIDTH:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return f"\n{indent}".join(lines)


def write(home: Path, scripts: Sequence[Script]) -> None:
    """Write the scripts to the workspace: all of them, or none.

    Raises:
        LabError: a file was changed since `lab submit` wrote it, or is another script.
    """
    for script in scripts:
        path = home / script.path
        if path.exists() and not _is_unchanged(path):
            near = f'name = "{path.name.partition(".")[0]}_2"'
            raise LabError(
                f"{script.path} is not what lab submit wrote, so it is not replaced: submit it "
                f"with sbatch, or choose another name; nearest: {near}")
    for script in scripts:
        write_atomic(home / script.path, script.text.encode(), 0o755)


def _is_unchanged(path: Path) -> bool:
    """Return whether `lab submit` wrote the file, and it has not been changed."""
    text, mark, digest = path.read_text(errors="replace").rpartition(MARK)
    return bool(mark) and digest.strip() == _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]

"""Record what programs do on a real GPU, in a file that tests compare virtual GPUs with."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from benchmarks.gpu import machine
from benchmarks.gpu.dtypes import operations
from benchmarks.gpu.sides import on_cuda


def record(path: Path, observations: dict[str, dict], dtypes: dict[str, str],
           choices: dict[str, str]) -> None:
    """Write what was observed on a real GPU as JSON.

    Args:
        path: the file to write.
        observations: results of probe.observe, by program.
        dtypes: result of dtypes.evaluate.
        choices: result of attention_choice.evaluate.
    """
    names: dict[str, int] = {}
    programs = {}
    for name, seen in observations.items():
        launches = [json.dumps([one.op, list(one.kernels), [list(shape) for shape in one.shapes]])
                    for one in seen["launches"]]
        programs[name] = {
            "marks": seen["marks"], "seconds": seen["seconds"],
            "launches": [names.setdefault(text, len(names)) for text in launches]}
    head = {**on_cuda(machine.describe), "cuDNN": on_cuda(torch.backends.cudnn.version)}
    path.write_text(dump({"recorded on": head, "launches": list(map(json.loads, names)),
                          "programs": programs, "operations": operations(),
                          "dtypes": grouped(dtypes), "attention": {
                              name: kernel for name, kernel in choices.items()
                              if "no gradient" not in name}}))


def grouped(dtypes: dict[str, str]) -> dict[str, dict[str, list[int]]]:
    """Return the numbers of the operations by setting and dtype, which takes little space.

    Of an error, only the type is kept.
    """
    numbers = {text: number for number, text in enumerate(operations())}
    made: dict[str, dict[str, list[int]]] = {}
    for key, dtype in dtypes.items():
        setting, _, operation = key.partition(": ")
        made.setdefault(setting, {}).setdefault(dtype.split(":")[0], []).append(numbers[operation])
    return made


def ungrouped(groups: dict[str, dict[str, list[int]]], texts: list[str]) -> dict[str, str]:
    """Invert `grouped`.

    Args:
        groups: the result of `grouped`.
        texts: operations by number.
    """
    return {f"{setting}: {texts[number]}": dtype for setting, found in groups.items()
            for dtype, numbers in found.items() for number in numbers}


def dump(value: dict) -> str:
    """Return JSON with one line per entry of the top-level dictionaries and lists."""
    parts = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}"
                               for name, one in item.items())
            parts.append(f"{json.dumps(key)}: {{\n{lines}}}")
        else:
            lines = ",\n".join("  " + json.dumps(one, separators=(",", ":")) for one in item)
            parts.append(f"{json.dumps(key)}: [\n{lines}]")
    return "{" + ",\n".join(parts) + "}\n"

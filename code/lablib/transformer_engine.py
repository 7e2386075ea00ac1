"""Libraries that import Transformer Engine get minite, where the real one is not installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import minite
from minite import recipes

NAME = "transformer_engine"


class StandIn(importlib.metadata.Distribution):
    """Metadata for importlib.metadata; libraries ask it whether the package is installed."""

    def read_text(self, filename: str) -> str | None:
        """Return the text of METADATA, the only file."""
        return f"Name: {NAME}\nVersion: 0+minite\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """Return where a file would be."""
        return Path(minite.__file__).with_name(str(path))


class Finder(importlib.metadata.DistributionFinder):
    """Finds the stand-in's metadata; its modules are in sys.modules."""

    def find_spec(self, *_: object) -> None:
        """Find no module."""

    def find_distributions(self, context: Any = None) -> Iterator[StandIn]:
        """Yield the stand-in if it is asked for by name."""
        if context is not None and (context.name or "").replace("-", "_") == NAME:
            yield StandIn()


def stand_in() -> None:
    """Let `import transformer_engine` import minite, unless Transformer Engine is installed.

    minite's layers, contexts, and recipes become transformer_engine.pytorch and
    transformer_engine.common.recipe.
    """
    if NAME in sys.modules or importlib.util.find_spec(NAME) is not None:
        return
    contents: dict[str, dict[str, Any]] = {
        "": {}, ".pytorch": {name: getattr(minite, name) for name in minite.__all__},
        ".pytorch.fp8": {"check_mxfp8_support": lambda: (False, "minite runs on the CPU")},
        ".common": {}, ".common.recipe": {name: value for name, value in vars(recipes).items()
                                          if not name.startswith("_")}}
    for suffix, content in contents.items():
        module = types.ModuleType(NAME + suffix)
        module.__spec__ = ModuleSpec(NAME + suffix, None, is_package=True)
        vars(module).update(content)
        sys.modules[NAME + suffix] = module
        parent, _, leaf = (NAME + suffix).rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    sys.meta_path.append(Finder())

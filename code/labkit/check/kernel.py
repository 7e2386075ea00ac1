"""The student's own kernel as a check's side: names are the functions themselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labcore import workspace
from labkit.check import wire
from labkit.check.sides import (
    DEFAULT_TRIAL,
    SEED_VARIABLE,
    GpusRun,
    Raised,
    RanksRun,
    SimulatedCluster,
    Trial,
    called,
    title,
    use_by_default,
)

if TYPE_CHECKING:
    from labkit.check.masking import KernelMasks


class KernelSide:
    """The side of a check in the student's own kernel."""

    masks: KernelMasks | None = None

    @property
    def seed(self) -> str:
        return os.environ.get(SEED_VARIABLE, "notebook")

    def value(self, name: Any) -> Any:
        return wire.copy(name)

    def call(self, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
             ) -> Any | Raised:
        given, words = wire.copy((tuple(arguments), dict(keywords)))
        if self.masks is None:
            result = called(function, given, words)
        else:
            result = self.masks.watched(function, lambda: called(function, given, words))
        return result if isinstance(result, Raised) else wire.copy(result)

    def ranks(self, function: Any, ranks: int, arguments: Sequence[Any],
              keywords: Mapping[str, Any], seconds: float) -> RanksRun:
        from labkit.check import on_ranks

        return on_ranks.run(function, ranks, arguments, keywords, seconds, self.masks)

    def gpus(self, function: Any, cluster: SimulatedCluster, arguments: Sequence[Any],
             keywords: Mapping[str, Any], seconds: float) -> GpusRun:
        from labkit.check import on_gpus

        given, words = wire.copy((tuple(arguments), dict(keywords)))
        return on_gpus.read(
            on_gpus.record(function, cluster, given, words, seconds, self.masks), cluster)

    def title(self, function: Any) -> str:
        return title(function)

    def script(self, path: str, trial: Trial = DEFAULT_TRIAL) -> dict[str, Any]:
        from labkit.check.record import record

        return record(workspace.home(), path, trial)

    def mask(self, names: Sequence[str]) -> None:
        from labkit.check.masking import KernelMasks

        self.masks = KernelMasks(names)
        # An unknown name is an error in this cell, not in a check. Ranks receive what is found
        # here; otherwise, each of them would parse large files of torch.
        self.masks.mask_targets  # noqa: B018

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        from labkit.check.measure import run_here

        return run_here(words)


use_by_default(KernelSide())
if "IPython" in sys.modules:  # a notebook's kernel
    from labkit.check.history import watch

    watch()

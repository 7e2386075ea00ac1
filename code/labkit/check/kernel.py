"""The student's own kernel as the side that checks use: names are the functions themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labcore import workspace
from labkit.check import wire
from labkit.check.sides import (
    SEED_VARIABLE,
    USUAL,
    Raised,
    Trial,
    called,
    title,
    use_by_default,
)

if TYPE_CHECKING:
    from labkit.check.masking import Masks
    from labkit.check.on_gpus import Cluster, Modeled
    from labkit.check.on_ranks import Run


class Kernel:
    """The student's own kernel."""

    masks: Masks | None = None

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
              keywords: Mapping[str, Any], seconds: float) -> Run:
        from labkit.check import on_ranks

        given, words = wire.copy((tuple(arguments), dict(keywords)))
        masked = self.masks.names if self.masks else ()
        return on_ranks.read(on_ranks.run(function, ranks, given, words, seconds, masked), ranks)

    def gpus(self, function: Any, cluster: Cluster, arguments: Sequence[Any],
             keywords: Mapping[str, Any], seconds: float) -> Modeled:
        from labkit.check import on_gpus

        given, words = wire.copy((tuple(arguments), dict(keywords)))
        masked = self.masks.names if self.masks else ()
        return on_gpus.read(
            on_gpus.record(function, cluster, given, words, seconds, masked), cluster)

    def title(self, function: Any) -> str:
        return title(function)

    def script(self, path: str, trial: Trial = USUAL) -> dict[str, Any]:
        from labkit.check.record import record

        return record(workspace.home(), path, trial)

    def mask(self, names: Sequence[str]) -> None:
        from labkit.check.masking import Masks

        self.masks = Masks(names)
        self.masks.places  # noqa: B018  an unknown name is an error in this cell, not in a check

    def figures(self, words: Sequence[str]) -> dict[str, Any]:
        from labkit.check.measure import run_here

        return run_here(words)


use_by_default(Kernel())

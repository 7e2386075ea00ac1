"""Progress of a run, which a checkpoint saves and a resumed run restores."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Progress:
    """Steps taken, and samples consumed.

    Attributes:
        iteration: optimizer steps, including skipped ones.
        consumed_train_samples: of the training data.
        consumed_valid_samples: of the validation data.
    """

    iteration: int = 0
    consumed_train_samples: int = 0
    consumed_valid_samples: int = 0

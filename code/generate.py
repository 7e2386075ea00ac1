"""Generate text with a trained model.

python generate.py --load CHECKPOINTS --prompt "import os"
torchrun --nproc_per_node 2 generate.py --tensor-model-parallel-size 2 --load CHECKPOINTS ...
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from minimegatron.checkpoint.saved_model import SavedModel


def open_model(folder: Path) -> SavedModel:
    """Return the model in a folder, by what is in it.

    Raises UserError unless that is a checkpoint of the trainer or of my_trainer.py, or a model in
    Hugging Face's format.
    """
    if (folder / "config.json").exists():
        from checkpoint_tools.convert import open_hugging_face

        return open_hugging_face(folder)
    if (folder / "latest").exists():
        from lab.mytrainer.saved_model import open_own

        return open_own(folder)
    from minimegatron.checkpoint.saved_model import saved_model

    return saved_model(folder)


def main() -> NoReturn:
    """Generate text as the command line asks, and end the process."""
    gc.set_threshold(100_000)  # importing torch creates millions of objects, and none is garbage
    from minimegatron.generate import main

    main(open_model)


if __name__ == "__main__":
    main()

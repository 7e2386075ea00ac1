"""Shipped job scripts with a smaller model, for tests of what surrounds the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

MODEL = {"--num-layers 4 --hidden-size 256 ": "--num-layers 2 --hidden-size 64 ",
         "--seq-length 256 --max-position-embeddings 256":
             "--seq-length 64 --max-position-embeddings 64"}


@contextlib.contextmanager
def scripts(home: Path, *names: str, replaced: Mapping[str, str] = MODEL) -> Iterator[None]:
    """Change scripts in a workspace, and restore them afterward.

    Args:
        home: the workspace.
        *names: the scripts' names, without `.sh`.
        replaced: what replaces each text, which occurs once in every script.
    """
    paths = [home / "code" / f"{name}.sh" for name in names]
    texts = [path.read_text() for path in paths]
    try:
        for path, text in zip(paths, texts, strict=True):
            for old, new in replaced.items():
                assert text.count(old) == 1
                text = text.replace(old, new)
            path.write_text(text)
        yield
    finally:
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)

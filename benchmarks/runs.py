"""Runs of the trainer for benchmarks, and the small data set that they train on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter
from corpus_tools.train_vocabulary import write_vocabulary

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS, TOKENS = 40, 20_000  # of each document


@contextmanager
def data_flags() -> Iterator[str]:
    """Flags of a data set of random bytes, as long as the context lasts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_vocabulary([], folder / "vocab.json", folder / "merges.txt")
        draw = np.random.RandomState(0)
        with IndexedDatasetWriter(folder / "text_document", np.uint16) as writer:
            for _ in range(DOCUMENTS):
                writer.add_sequence(draw.randint(256, size=TOKENS))
                writer.end_document()
        yield (f"--data-path {folder}/text_document --vocab-file {folder}/vocab.json "
               f"--merge-file {folder}/merges.txt ")


def pretrain(ranks: int, flags: str, threads: int = 1) -> str:
    """Train on `ranks` ranks and return the output; raise CalledProcessError if that fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc_per_node", str(ranks), str(ROOT / "code" / "pretrain_gpt.py"),
               "--device", "cpu", *flags.split()]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)}).stdout

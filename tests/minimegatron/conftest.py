"""A small data set of real text, and the trainer as its users start it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch.distributed as dist

from corpus_tools.indexed_dataset_writer import IndexedDatasetWriter
from corpus_tools.train_vocabulary import train_merges, write_vocabulary
from labcore.workspace import CODE
from minimegatron.arguments import parse_arguments
from minimegatron.context import Context
from minimegatron.data.tokenizer import GPT2BPETokenizer
from minimegatron.device.device import CpuDevice
from minimegatron.device.virtual import VirtualDevice
from minimegatron.grid import make_grid
from pretrain_gpt import main
from tests.ports import free_port
from virtualgpu.core.cards import CARDS
from warmranks import run_program

PRETRAIN = str(CODE / "pretrain_gpt.py")
MODEL = ("--device cpu --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
         "--max-position-embeddings 32 --micro-batch-size 2 --lr 1e-3 --split 900,50,50 ")
NUMBER = r"(-?[\d.]+(?:E[+-]\d+)?|nan)"


@dataclass(frozen=True)
class Dataset:
    folder: Path

    @property
    def flags(self) -> str:
        return (f"--data-path {self.folder}/text_document --vocab-file {self.folder}/vocab.json "
                f"--merge-file {self.folder}/merges.txt ")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Dataset:
    """Sources of the standard library, a vocabulary of 512, 40 documents."""
    folder = tmp_path_factory.mktemp("dataset")
    library = Path(os.__file__).parent
    sources = sorted(library.glob("*.py"))[:40]
    texts = [source.read_text(errors="ignore")[:20_000] for source in sources]
    write_vocabulary(train_merges(texts, 512 - 257), folder / "vocab.json", folder / "merges.txt")
    tokenizer = GPT2BPETokenizer(folder / "vocab.json", folder / "merges.txt")
    with IndexedDatasetWriter(folder / "text_document", np.uint16) as writer:
        for tokens in tokenizer.tokenize_batch(texts):
            writer.add_sequence([*tokens, tokenizer.eod])
            writer.end_document()
    return Dataset(folder)


@dataclass(frozen=True)
class Run:
    """The output of a run of the trainer."""

    code: int
    out: str
    err: str

    def column(self, name: str) -> list[float]:
        """A quantity of the iteration lines, in order."""
        lines = [line for line in self.out.splitlines() if line.startswith(" iteration")]
        results = [re.search(rf"{re.escape(name)}: +{NUMBER} \|", line) for line in lines]
        return [float(match.group(1)) for match in results if match]


def checked(done: subprocess.CompletedProcess, code: int | None) -> Run:
    """Return a run's output; its exit status must be `code`, unless that is None."""
    if code is not None:
        assert done.returncode == code, done.stdout[-2000:] + done.stderr[-3000:]
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def pretrain(dataset):
    """Run pretrain_gpt.py with the tiny model, on `ranks` processes under torchrun."""

    def run(flags: str, ranks: int = 0, launcher: str = "torch.distributed.run",
            env: dict[str, str] | None = None, base: str | None = None, code: int | None = 0
            ) -> Run:
        words = shlex.split((MODEL + dataset.flags if base is None else base) + " " + flags)
        command = [sys.executable, PRETRAIN, *words]
        if ranks:
            command = [sys.executable, "-m", launcher, "--nproc_per_node", str(ranks),
                       "--master_port", str(free_port()), PRETRAIN, *words]
        return checked(subprocess.run(command, capture_output=True, text=True, timeout=200,
                                      cwd=CODE.parent, env={**os.environ, **(env or {})}), code)

    return run


@pytest.fixture(scope="session")
def train(dataset):
    """Like `pretrain`, for tests of what a run does and not of how it is started: on warm ranks,
    without torchrun."""

    def run(flags: str, ranks: int = 0, env: dict[str, str] | None = None, base: str | None = None,
            code: int | None = 0, program: Callable[[], object] = main) -> Run:
        words = shlex.split((MODEL + dataset.flags if base is None else base) + " " + flags)
        return checked(run_program(program, [PRETRAIN, *words], ranks=ranks, timeout=200,
                                   cwd=CODE.parent, env={**os.environ, **(env or {})}), code)

    return run


@pytest.fixture
def make_context():
    """A Context of one rank on the CPU, without data."""
    made = []

    def make(flags: str = "") -> Context:
        config = parse_arguments(shlex.split(
            MODEL + "--train-iters 10 --data-path x --vocab-file x --merge-file x " + flags), {})
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            made.append(True)
        return Context(config, make_grid({}, "gloo"), CpuDevice())

    yield make
    if made:
        dist.destroy_process_group()


@pytest.fixture
def virtual_device():
    """A virtual V100, switched on while the test runs."""
    device = VirtualDevice(CARDS["v100-sxm2-16gb"], link=None)
    yield device
    device.gpu.__exit__(None, None, None)

"""The flags that gpipe.py and pipe_dream.py share, and how they end when one is wrong."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpt_layers import Size
from labcore import workspace
from labcore.errors import LabError
from minimegatron.errors import UserError, emit

PATIENCE = 3  # seconds


@dataclass(frozen=True)
class Preset:
    """A model, and which of the workspace's texts (`lab data` makes both) it reads."""

    size: Size  # its vocabulary is the text's
    text: str
    vocab: str
    merges: str

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """The token file without its ending, vocabulary and merges."""
        data = workspace.home() / "data"
        return data / self.text, data / self.vocab, data / self.merges


PRESETS = {
    "tiny": Preset(Size(layers=12, hidden=128, heads=4, positions=128, vocabulary=0),
                   "bpe-4096/text_document", "bpe-4096/vocab.json", "bpe-4096/merges.txt"),
    "gpt2": Preset(Size(layers=12, hidden=768, heads=12, positions=1024, vocabulary=0),
                   "GPT-2_assets/my-gpt2_text_document", "GPT-2_assets/gpt2-vocab.json",
                   "GPT-2_assets/gpt2-merges.txt")}


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    model = made.add_argument_group("model and text")
    model.add_argument("--preset", choices=PRESETS, default="tiny",
                       help="12 blocks of width 128, or GPT-2's 124M parameters (default: tiny)")
    model.add_argument("--pretrained", metavar="NAME_OR_FOLDER",
                       help="GPT-2's weights, instead of random ones: gpt2, or a saved model")
    model.add_argument("--dataset", metavar="NAME_OR_FILE",
                       help="questions and answers, instead of the workspace's text: squad, or a "
                       "file of its kind (.json, .jsonl)")
    model.add_argument("--seq-length", type=positive, metavar="N",
                       help="tokens in a sample (default: as many as the model has positions, "
                       "256 at most)")
    train = made.add_argument_group("training")
    train.add_argument("--iterations", type=positive, default=10, metavar="N")
    train.add_argument("--lr", type=float, metavar="X", help="learning rate of AdamW")
    train.add_argument("--clip-grad", type=float, metavar="X", help="the gradient's largest norm")
    train.add_argument("--seed", type=int, default=1234, metavar="N")
    return made


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not possible: give 1 or more")
    return number


def parse_balance(flag: str, text: str, layers: int, stages: int | None = None) -> list[int]:
    """Layers on each stage, from a text as in 4,3,3,4. Raises LabError unless it fits."""
    try:
        balance = [int(part) for part in text.split(",")]
    except ValueError:
        raise LabError(f"{flag} {text}: give the layers of each stage, as in 4,3,3,4") from None
    if min(balance) < 1 or sum(balance) != layers:
        raise LabError(f"{flag} {text}: every stage needs a layer, and together they must hold "
                       f"{layers} (the embedding, {layers - 2} blocks and the head); these hold "
                       f"{sum(balance)}")
    if stages is not None and len(balance) != stages:
        raise LabError(f"{flag} {text} is for {len(balance)} stages, and there are {stages}")
    return balance


def pair(flag: str, text: str) -> tuple[int, int]:
    """Two numbers of 1 or more. Raises LabError."""
    try:
        first, second = map(int, text.split(","))
    except ValueError:
        first = second = 0
    if min(first, second) < 1:
        raise LabError(f"{flag} {text}: give two numbers of 1 or more, as in 4,8")
    return first, second


def seq_length(flag: int | None, size: Size) -> int:
    """Tokens in a sample. Raises LabError for more than the model has positions."""
    if flag is not None and flag > size.positions:
        raise LabError(f"--seq-length {flag} is more than the model's {size.positions} positions")
    return flag or min(size.positions, 256)


def explained(run: Callable[[], None]) -> int:
    """Run the program; the exit code: 1 after printing what the user can mend."""
    try:
        run()
    except (LabError, UserError) as error:
        rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))
        if rank:  # most errors are every rank's: rank 0 speaks first, and a launcher ends the rest
            time.sleep(PATIENCE)
        emit(f"[rank {rank}] error: {error}" if rank else f"error: {error}", sys.stderr)
        return 1
    return 0

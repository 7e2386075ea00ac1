"""Run the training loop on virtual GPUs, and measure what the student's pieces gain."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from lab.mytrainer import pieces
from labcore import workspace
from labcore.errors import LabError

SCRIPT = workspace.CODE / "jobs" / "my_trainer.py"
TITLE = "GPT-2 small (124M parameters), sequences of 1,024 tokens, micro-batches of 2"
MODEL = ("--num-layers 12 --hidden-size 768 --num-attention-heads 12 "
         "--seq-length 1024 --max-position-embeddings 1024 --make-vocab-size-divisible-by 50304 "
         "--use-flash-attn --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 2 ")
RUN = "--device cuda --lr 1e-4 --log-interval 3 --eval-iters 0 --split 949,50,1"
# Their messages are complete without the name of the class.
OURS = re.compile(r"(?:\b(?:Lab|Piece|User)Error: )+")


@dataclass(frozen=True)
class Gain:
    """Modeled figures of one step.

    Attributes:
        gpus: the number of GPUs.
        tokens: throughput of all GPUs together, in tokens per second.
        peak: peak allocated memory per GPU, in bytes.
        exposed: time in which a GPU only waits for communication, in seconds.
        seconds: step time.
        mfu: model FLOPs utilization, the mean over the GPUs; None if one GPU's is unknown.
    """

    gpus: int
    tokens: float
    peak: int
    exposed: float
    seconds: float
    mfu: float | None


def measure(gpus: str, nodes: int = 1, link: str | None = None, flags: str | None = None,
            wrapper: type | None = None, alike: bool = True, steps: int = 3) -> Gain:
    """Run a few steps on virtual GPUs.

    Args:
        gpus: the GPU model and the number per node, such as "h100:8", or several kinds of nodes,
            such as "a100:2,a10:2".
        nodes: the number of nodes.
        link: the network between them, such as "ethernet:25gbit"; None for the GPU model's own.
        flags: the flags of my_trainer.py for the model and the batch; None for MODEL.
        wrapper: a class to use in place of the DataParallel of mytrainer/ddp.py, if not None.
        alike: whether all ranks do the same, so that one process can stand for all ranks on equal
            neighboring nodes.
        steps: the number of steps.

    Raises:
        LabError: the run fails; the message begins with the line of the piece that caused it.
    """
    from virtualgpu import run
    from virtualgpu.launch.cluster import parse

    present = parse(gpus, nodes, link).representatives if alike else None
    # Redirected because the result contains the error, too.
    with contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as cache:
        ranks = run(partial(train, MODEL if flags is None else flags, cache, wrapper, steps), gpus,
                    nodes, link=link, present=present)
    if errors := [rank.error for rank in ranks if rank.error]:
        ours = next(filter(OURS.search, errors), errors[0])
        raise LabError(OURS.split(ours, maxsplit=1)[-1])
    accounts, (world, sharing) = [rank.account for rank in ranks], ranks[0].value
    mfus = [one["flops"]["mfu"] if one["flops"] else 0.0 for one in accounts]  # 0: no samples
    tokens = sum(one["tokens"]["per_second"] for one in accounts if one["tokens"])
    return Gain(world, tokens * world / len(ranks) / sharing,
                max(one["memory"]["peak_allocated_bytes"] for one in accounts),
                max(one["communication"]["exposed_seconds"] for one in accounts),
                max(one["step"]["seconds"] for one in accounts),
                None if None in mfus else fmean(mfus))


def text_flags() -> list[str]:
    """Return the flags that name the workspace's text. Raises LabError if it has none."""
    folder = workspace.home() / "data" / "bpe-4096"
    if not (folder / "text_document.bin").exists():
        raise LabError(f"{folder} has no text to train on; create it with `lab data`")
    return ["--data-path", f"{folder}/text_document", "--vocab-file", f"{folder}/vocab.json",
            "--merge-file", f"{folder}/merges.txt"]


def train(flags: str, cache: str, wrapper: type | None = None, steps: int = 3) -> tuple[int, int]:
    """Run the loop as one rank without its output.

    Returns the world size, and how many ranks share a model and its tokens.

    Args:
        flags: the flags of my_trainer.py for the model and the batch.
        cache: a folder for the data's index maps, the same for all ranks.
        wrapper: a class to use in place of the DataParallel of mytrainer/ddp.py, if not None.
        steps: the number of steps.

    Raises:
        LabError: there is no text to train on, or the run fails.
    """
    text = text_flags()
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        os.dup2(null.fileno(), 1)  # in a notebook, sys.stdout is not file descriptor 1
        overlap = [] if "--pipeline-model-parallel-size" in flags else ["--overlap-grad-reduce"]
        sys.argv = [str(SCRIPT), *flags.split(), *RUN.split(), *overlap, "--train-iters",
                    str(steps), *text, "--data-cache-path", cache]
        try:
            grid = runpy.run_path(str(SCRIPT), run_name="my_trainer")["main"](wrapper)
        except Exception as error:
            raise LabError(pieces.blame(error)) from error
    return grid.world_size, grid.tp.size


def table(gains: list[Gain]) -> list[str]:
    """Return the lines of a table, with one row per measurement."""
    lines = [f"{'GPUs':>6} {'tokens/s':>12} {'speedup':>9} {'peak memory':>13}   "
             "exposed communication"]
    for gain in gains:
        speedup = gain.tokens / gains[0].tokens
        lines.append(f"{gain.gpus:>6} {gain.tokens:>12,.0f} {speedup:>8.2f}x "
                     f"{gain.peak / 2**30:>9.2f} GiB   {1000 * gain.exposed:.2f} ms of a step of "
                     f"{1000 * gain.seconds:.1f} ms ({gain.exposed / gain.seconds:.1%})")
    return lines

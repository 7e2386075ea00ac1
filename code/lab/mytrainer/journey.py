"""The map of the student's trainer: whose part is whose, what it computes, and what it reaches.

Every `lab mytrainer` notes its figures in mytrainer/journey.json, one entry for the latest lab
whose files work, so the table shows what each lab has added.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from job_monitor import logs
from lab.mytrainer import gain, pieces
from lab.mytrainer.flags import OWN_MODEL
from lab.mytrainer.pieces import PIECES
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError

NOTES = f"{pieces.FOLDER}/journey.json"
# The path of a sample through a step, and the student's file for each station; None: the course's.
STATIONS = (("samples and tokenizer", None), ("ranks and shares", "launch"),
            ("training loop", "train"), ("model", "llama"),
            ("partitioned layers", "tensor_parallel"), ("partitioned sequence",
            "sequence_parallel"), ("linear layers", "fp8"), ("operations' dtypes", "autocast"),
            ("saved activations", "checkpointing"),
            ("averaged gradients", "ddp"), ("ring all-reduce", "collectives"),
            ("optimizer state", "zero"), ("gradient buffers", "zero2"),
            ("parameter storage", "zero3"), ("parameter prefetch", "prefetch"),
            ("gradient clipping", "clipping"), ("clipping of parts", "grad_norm"),
            ("optimizer", None),
            ("master weights", "precision"), ("loss scaling", "scaler"),
            ("checkpoints", "reshard"), ("log", None))
TINY = ("--device cpu --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
        "--max-position-embeddings 64 --attention-dropout 0 --hidden-dropout 0 "
        "--micro-batch-size 2 --global-batch-size 8 --train-iters 5 --log-interval 1 --lr 1e-4 "
        "--eval-iters 0 --split 949,50,1")
# GPT-3's family (Brown et al. 2020, table 2.1), and two models between its largest ones (Narayanan
# et al. 2021, table 1): name, layers, width, and attention heads.
FAMILY = (("GPT-3 Small, 125M", 12, 768, 12), ("GPT-3 Medium, 350M", 24, 1024, 16),
          ("GPT-3 Large, 760M", 24, 1536, 16), ("GPT-3 XL, 1.3B", 24, 2048, 16),
          ("GPT-3 2.7B", 32, 2560, 32), ("GPT-3 6.7B", 32, 4096, 32), ("GPT-3 13B", 40, 5120, 40),
          ("GPT 18.4B", 40, 6144, 48), ("GPT 39.1B", 48, 8192, 64),
          ("GPT-3 175B", 96, 12288, 96))
# What a model of the family is trained with to find out whether it fits.
FITTING = ("--seq-length 2048 --max-position-embeddings 2048 --make-vocab-size-divisible-by 50304 "
           "--use-flash-attn --attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 --bf16")
# Llama 3 8B with the vocabulary of its paper (Llama Team 2024, table 3), shared by eight GPUs.
LLAMA = ("--preset llama3-8b --make-vocab-size-divisible-by 16032 --use-flash-attn "
         "--attention-dropout 0 --hidden-dropout 0 --micro-batch-size 1 --bf16 "
         "--tensor-model-parallel-size 8 --sequence-parallel")
LLAMA_FILES = (*OWN_MODEL, "sequence_parallel")
RECOMPUTE = "--bf16 --recompute-granularity full --recompute-method uniform"
# A lab has a row once these files work: their names, the precision, and the flags that use them.
LABS = {"lab 04": (("ddp",), "FP32", ""),
        "lab 05": (("precision",), "BF16", "--bf16"),
        "lab 06": (("checkpointing",), "BF16", RECOMPUTE),
        "lab 08": (("checkpointing", "prefetch", "clipping"), "BF16",
                   f"{RECOMPUTE} --use-megatron-fsdp --data-parallel-sharding-strategy "
                   "optim_grads_params --overlap-param-gather"),
        "lab 13": (("fp8",), "FP8", "--bf16 --fp8-format hybrid --fp8-recipe tensorwise")}


@dataclass(frozen=True)
class Leg:
    """What the trainer reaches with the files up to one lab, on modeled H100s.

    Attributes:
        lab: the latest of LABS whose files work.
        precision: that of the linear layers.
        tokens: throughput of 8 GPUs, in tokens per second.
        mfu: their model FLOPs utilization; None if it is unknown.
        peak: their peak allocated memory per GPU, in bytes.
        tokens_1024: throughput of 1,024 GPUs, in tokens per second.
        largest: the largest model of FAMILY that fits on 8 GPUs, or "none".
        largest_1024: the same on 1,024 GPUs.
    """

    lab: str
    precision: str
    tokens: float
    mfu: float | None
    peak: int
    tokens_1024: float
    largest: str
    largest_1024: str


def stations(working: set[str]) -> list[tuple[str, str | None, bool]]:
    """Return the name of each station, the student's file for it, if any, and whether it works."""
    return [(text, PIECES[name].shown if name else None, name in working)
            for text, name in STATIONS]


def loss_difference(ranks: int, flags: str = "", model: str = "") -> float:
    """Return the largest relative difference of five losses from those of pretrain_gpt.py.

    Args:
        ranks: the number of ranks of the student's trainer; the reference has one process.
        flags: more flags of the student's trainer.
        model: more flags of both.

    Raises LabError if a run fails.
    """
    with tempfile.TemporaryDirectory() as cache:
        words = [*TINY.split(), *model.split(), *gain.text_flags(), "--data-cache-path", cache]
        reference = _run(workspace.CODE / "pretrain_gpt.py", words, 0)
        mine = _run(gain.SCRIPT, [*words, *flags.split()], ranks if ranks > 1 else 0)
        return logs.loss_difference(reference, mine)


def _run(script: Path, words: Sequence[str], ranks: int) -> logs.Log:
    """Run a program on warm ranks, and return its log. Raises LabError if it fails."""
    from warmranks import run_program

    done = run_program(_main, [str(script), *words], ranks=ranks, timeout=120,
                       env=dict(os.environ), cwd=workspace.home())
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error: " in line]
        last = (errors or done.stderr.strip().splitlines() or ["no error was printed"])[-1]
        raise LabError(f"{script.name} on {max(ranks, 1)} rank(s): "
                       f"{last.partition('error: ')[2] or last}")
    return logs.parse(done.stdout.splitlines())


def _main() -> None:
    runpy.run_path(sys.argv[0], run_name="__main__")


def measure(lab: str) -> Leg:
    """Measure what the working files reach on virtual H100s. Raises LabError if a run fails."""
    _, precision, flags = LABS[lab]
    eight, thousand = (gain.measure("h100:8", nodes, flags=f"{gain.MODEL} {flags}")
                       for nodes in (1, 128))
    largest = _largest(flags, 1, -1)
    names = [FAMILY[at][0] if at >= 0 else "none"
             for at in (largest, _largest(flags, 128, largest))]
    return Leg(lab, precision, eight.tokens, eight.mfu, eight.peak, thousand.tokens, *names)


def _largest(flags: str, nodes: int, fits: int) -> int:
    """Return the index of the largest model of FAMILY that fits on nodes of eight H100s, or -1.

    Args:
        flags: of the trainer, beside the model's.
        nodes: the number of nodes.
        fits: the index of a model that is known to fit; -1 if none is.
    """
    low, high = fits, len(FAMILY)
    at = low + 1 if fits >= 0 else (low + high) // 2  # more nodes rarely change the answer
    while high - low > 1:
        low, high = (at, high) if _fits(at, flags, nodes) else (low, at)
        at = (low + high) // 2
    return low


def _fits(number: int, flags: str, nodes: int) -> bool:
    _, layers, width, heads = FAMILY[number]
    model = f"--num-layers {layers} --hidden-size {width} --num-attention-heads {heads}"
    try:
        gain.measure("h100:8", nodes, flags=f"{model} {FITTING} {flags}", steps=1)
    except LabError as error:
        if "out of memory" in str(error):
            return False
        raise
    return True


def latest_lab(working: set[str]) -> str:
    """Return the latest of LABS whose files work, given the names of the pieces that do."""
    return max(lab for lab, (files, _, _) in LABS.items() if working.issuperset(files))


def note(leg: Leg) -> list[Leg]:
    """Store the figures of a lab, and return those of all labs so far, in order."""
    legs = {one.lab: one for one in noted()} | {leg.lab: leg}
    in_order = [legs[lab] for lab in sorted(legs)]
    text = json.dumps([asdict(one) for one in in_order], indent=1)
    write_atomic(workspace.home() / NOTES, text.encode())
    return in_order


def noted() -> list[Leg]:
    """Return what earlier calls have stored. Raises LabError if the file is damaged."""
    path = workspace.home() / NOTES
    if not path.exists():
        return []
    try:
        return [Leg(**entry) for entry in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise LabError(f"{NOTES} is not what `lab mytrainer` writes ({error}); delete it, and the "
                       "next `lab mytrainer` begins a new one") from error


def table(legs: Sequence[Leg]) -> Iterator[str]:
    """Return the lines of the journey's table."""
    yield (f"{'after':<8}{'in':<6}{'8 H100s':>14}{'MFU':>9}{'peak memory':>13}"
           f"{'1,024 H100s':>18}   largest model on 8, and on 1,024")
    for leg in legs:
        yield (f"{leg.lab:<8}{leg.precision:<6}{leg.tokens:>8,.0f} tok/s{utilization(leg):>9}"
               f"{leg.peak / 2**30:>9.2f} GiB{leg.tokens_1024:>12,.0f} tok/s   {leg.largest}; "
               f"{leg.largest_1024}")


def utilization(leg: Leg) -> str:
    return "unknown" if leg.mfu is None else f"{leg.mfu:.1%}"


def page(working: set[str], difference: float | None, legs: Sequence[Leg]) -> str:
    """Return the map as an HTML page.

    Args:
        working: the names of the pieces that work.
        difference: the largest relative difference of the losses, if it was measured.
        legs: the figures of the labs so far.
    """
    from labcore.html import render

    rows = [(leg, utilization(leg)) for leg in legs]
    return render("lab/mytrainer/journey.html.j2", stations=stations(working), rows=rows,
                  difference=difference, model=gain.TITLE)

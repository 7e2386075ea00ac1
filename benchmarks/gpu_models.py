"""Write one figure per GPU model and software stack, so that none changes unnoticed.

    python -m benchmarks.gpu_models

The figure is the modeled step time of GPT-2 medium on one node of four GPUs. tests/accuracy fails
if today's model is more than 2% away from the table in benchmarks/results/gpu_models.md: then
write the table again, and say in its HISTORY what changed and why.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.accuracy import trainer
from virtualgpu.core import accuracy
from virtualgpu.core.cards import CARDS
from virtualgpu.core.stacks import DEFAULT, card_under, default_megatron

PAGE = Path(__file__).parent / "results" / "gpu_models.md"
TOLERANCE = 0.02
JOB = {"layers": 24, "hidden": 1024, "heads": 16, "sequence": 1024, "vocabulary": 50257, "tp": 1,
       "pp": 1, "gpus": 4, "per_node": 4, "micro_batch": 4, "batch": 32, "flags": "--fp16"}
HEAD = """# One step on every GPU model

Made by `python -m benchmarks.gpu_models`. Milliseconds of a step of GPT-2 medium (24 layers of
1,024, 1,024 tokens, fp16) on one node of four GPUs, each of which computes two micro-batches of
four samples, under the stacks that the trainer and virtualrun choose. All figures are modeled. The
errors are those of published runs that nothing was fitted to; [the
comparison](virtual_accuracy.md) has them.
"""
# What changed a figure by more than TOLERANCE, and why.
HISTORY = """- 2026-11-28: the stacks gave the efficiency that was fitted to A100 and H100 to all
  GPUs of the same architecture. Now they give it to A100, H100, and H200 alone, and the others have
  that of their own file. The a10 became 14% slower under megatron-2021 and 28% under
  torch-eager-fsdp, the rtx3090 21% faster, and the h100-pcie-80gb 4% and 12% faster."""


def step_seconds(name: str, stack: str) -> float:
    """Return the modeled seconds of a step on a GPU model under a software stack."""
    return trainer.predict(JOB, card_under(name, stack)).seconds


def stacks_of(name: str) -> tuple[str, str]:
    """Return the stacks that the trainer and virtualrun give a GPU model by default."""
    return default_megatron(CARDS[name]), DEFAULT


def row(name: str, stack: str) -> str:
    """Return a row of the table."""
    error = accuracy.TIME.get(stack, {}).get(name, "no published run")
    return f"| {name} | {stack} | {1000 * step_seconds(name, stack):.1f} | {error} |"


def report() -> str:
    """Return the page, as Markdown."""
    rows = [row(name, stack) for name in CARDS for stack in stacks_of(name)]
    return "\n".join([HEAD, "| GPU model | software stack | ms per step | error of step times |",
                      "|---|---|---|---|", *rows, "", HISTORY, ""])


if __name__ == "__main__":
    PAGE.write_text(report())

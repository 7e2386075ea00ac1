"""Predict published times of single layers on virtual GPUs, and write the errors.

    python -m benchmarks.layer_times

The rows are no training runs, so the errors that programs state do not count them.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.accuracy import trainer
from virtualgpu.core.cards import find

PUBLISHED = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parent / "results" / "layer_times.md"
# Of the two inner stages, one has a layer more than the other.
MODEL = {"layers": 3, "hidden": 1600, "heads": 16, "sequence": 1024, "vocabulary": 50257, "pp": 4,
         "micro_batch": 1, "batch": 4, "flags": "--fp16 --balance 0-1-2-0"}
ABOUT = """# Times of a layer, published and predicted

Made by `python -m benchmarks.layer_times`. Milliseconds of the forward pass of one layer of GPT-2
XL (hidden size 1,600, 16 heads, 1,024 tokens, fp16), with one sample. The published time is the
median of 47 layers from the profiles that FASOP's planner was built on. Nothing was fitted to these
rows. They were looked at on 2026-11-28, after the model was changed for another reason.

Read the errors with care, because the profile does not time what a training run does:

- A hook after every module waits for the GPU, and only the wait counts
  (`training-profile_LBL.py` in the source). So the time includes a dozen synchronizations, but not
  what the GPU computed while the host was still launching.
- A profile is over in a few milliseconds. The predicted rate of the a10 is that of minutes of
  GEMMs, during which its 150 W hold the clock down to 45% of the peak. The profile's A10 was
  faster. FASOP's training run on 32 A10, of 50 steps, was not: its steps took 5% longer than
  [predicted](virtual_accuracy.md).
- The A100 takes 1.5 to 1.9 times as long as the rates of its GEMMs and its memory that others
  published allow. We do not know why. The notebook does not name its variant; the authors' readme
  says 40 GB.
"""


def predict(row: dict) -> float:
    """Return the milliseconds of a row's forward pass, at the rates of single kernels."""
    gpus = MODEL["pp"] * row["tp"]
    job = {**MODEL, "tp": row["tp"], "gpus": gpus}
    config = trainer.configure(job)
    estimate = trainer.estimator(find(row["gpu"]), None, gpus).estimate(
        config, MODEL["vocabulary"])
    _, one, two, _ = estimate.forward
    return 1000 * (two - one)


def report() -> str:
    """Return the table of published and predicted times, as Markdown."""
    published = json.loads(PUBLISHED.read_text())
    lines = [ABOUT, "| GPU model | tensor-parallel | published ms | predicted ms | error |",
             "|---|---|---|---|---|"]
    for row in published["rows"]:
        found = predict(row)
        lines.append(f"| {row['gpu']} | {row['tp']} | {row['milliseconds']:.3f} | {found:.3f} | "
                     f"{found / row['milliseconds'] - 1:+.0%} |")
    return "\n".join([*lines, "", f"Source: {published['source']}.", ""])


if __name__ == "__main__":
    PAGE.write_text(report())

"""Compare published times per output token with those of virtual GPUs.

    python -m benchmarks.inference
    python -m benchmarks.inference --host

The first takes two minutes, and writes benchmarks/results/inference.json and inference.md. --host
measures what views and calls of modules take on this machine's CPU, which virtualgpu/core/eager.py
needs and the H100's record lacks.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.decoding import PROGRAMS
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings

RESULTS = Path(__file__).parent / "results"
DATA = json.loads((Path(__file__).parent / "inference.json").read_text())
ABOUT = """# Decoding, published and predicted

Made by `python -m benchmarks.inference`: the time per output token, without the prompt. The host's
cost per operation was measured on an H100's host, and only the A100's host was fitted, to the row
that calibrates. All rows were known when the model was made, and a T4 row was the reason
why the A100's slower host is not assumed for other GPUs; so none is a blind prediction. The
programs are in `benchmarks/decoding.py`; rows of Hugging Face's `generate` run on the installed
transformers and not on the version of the source.

""".splitlines()


def predict(row: dict, host: bool = True) -> float:
    """Return the modeled time per output token, in milliseconds.

    Args:
        row: the published row.
        host: whether the host is charged for eager operations.
    """
    settings = Settings(eager_host=host)
    (rank,) = run_ranks(parse(row["gpu"]), settings, partial(PROGRAMS[row["program"]], row), None)
    if rank.error:
        raise SystemExit(f"{row['model']} on {row['gpu']}: {rank.error}")
    return 1e3 * rank.account["inference"]["token_seconds"]


def error(row: dict) -> float:
    """Return the relative error of a predicted row."""
    return row["predicted"] / row["published"] - 1


def report(rows: list[dict]) -> str:
    """Return the table, as Markdown.

    Args:
        rows: the published rows, with `predicted` and `launches` in milliseconds.
    """
    lines = [*ABOUT, "| model | GPU | batch | context | mode | published (ms) | launches only (ms) "
             "| predicted (ms) | error | use | source |", "|" + "---|" * 11]
    lines += [f"| {row['model']} | {row['gpu']} | {row['batch']} | {row['prompt']:,} | "
              f"{row['mode']} | {row['published']:.1f} | {row['launches']:.1f} | "
              f"{row['predicted']:.1f} | {error(row):+.1%} | {row['use']} | {row['source']} |"
              for row in rows]
    tests = [row for row in rows if row["use"] == "test"]
    errors = list(map(error, tests))
    before = [row["launches"] / row["published"] - 1 for row in tests]
    lines += ["", f"The mean error of the {len(errors)} test rows is "
              f"{statistics.fmean(map(abs, errors)):.1%}, and the largest is "
              f"{max(errors, key=abs):+.1%}. Without a cost of eager operations "
              f"(`--host-cost launches`), they are {statistics.fmean(map(abs, before)):.1%} and "
              f"{max(before, key=abs):+.1%}.", "", "Sources:", ""]
    lines += [f"- {name}: {text}." for name, text in DATA["sources"].items()]
    return "\n".join(lines) + "\n"


def host() -> str:
    """Return the CPU time of views and of a module's call, in microseconds, as Markdown."""
    class Reading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(1)), 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            _ = self.weight, self.eps
            return x

    torch.set_num_threads(1)
    x, module = torch.randn(64, 64), Reading()
    calls: dict[str, Callable[[], object]] = {
        "x.view": lambda: x.view(4096), "x.transpose": lambda: x.transpose(0, 1),
        "x[0]": lambda: x[0], "x[..., 0]": lambda: x[..., 0], "x[:, :32]": lambda: x[:, :32],
        "x.unsqueeze": lambda: x.unsqueeze(0), "x.expand": lambda: x.expand(2, 64, 64),
        "module(x)": lambda: module(x)}
    with torch.no_grad():
        found = {name: microseconds(call) for name, call in calls.items()}
    return "\n".join(["| call | us |", "|---|---|",
                      *(f"| {name} | {value:.2f} |" for name, value in found.items())])


def microseconds(call: Callable[[], object], calls: int = 2000, repeats: int = 9) -> float:
    """Return the median time of a call, in microseconds."""
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begin) / calls)
    return 1e6 * statistics.median(found)


def main() -> None:
    if "--host" in sys.argv[1:]:
        print(host())
        return
    rows = [row | {"predicted": round(predict(row), 3), "launches": round(predict(row, False), 3)}
            for row in DATA["rows"]]
    (RESULTS / "inference.json").write_text(json.dumps(rows, indent=1) + "\n")
    (RESULTS / "inference.md").write_text(report(rows))


if __name__ == "__main__":
    main()

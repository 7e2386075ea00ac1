"""Compare virtualrun's predictions with torchtitan's published speed and memory.

    python benchmarks/virtualrun_published.py

Runs benchmarks/llama_fsdp.py, a plain PyTorch program, on virtual GPUs in each published
configuration, with one process standing for all ranks. Writes
benchmarks/results/virtualrun_published.md.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import llama_fsdp
import torch

import virtualgpu
from virtualgpu.core import cards

RESULT = Path(__file__).parent / "results" / "virtualrun_published.md"
# Hidden size, layers, heads, key-value heads, FFN size, vocabulary, sequence length.
MODELS = {
    "Llama 3 8B": (4096, 32, 32, 8, 14336, 128256, 8192),
    "Llama 3 70B": (8192, 80, 64, 8, 28672, 128256, 8192),
    "Llama 2 13B": (5120, 40, 40, 40, 13824, 32000, 4096),
    "Llama 2 70B": (8192, 80, 64, 8, 28672, 32000, 4096),
}
NAMES = ("hidden", "layers", "heads", "groups", "inner", "vocabulary", "sequence")
TORCHTITAN = "https://github.com/pytorch/torchtitan/blob"
# torchtitan's H100 is not the data sheet's: 96 GB of HBM2e (94.99 GiB in its logs) at 2.4 TB/s.
GRAND_TETON = "h100-96gb-hbm2e"
H100 = cards.find("h100")
cards.CARDS[GRAND_TETON] = replace(H100, name=GRAND_TETON, memory=int(94.99 * 2**30),
                                   bandwidth=2.4e12)


@dataclass(frozen=True)
class Row:
    """One published configuration.

    Attributes:
        model: a key of MODELS.
        batch: sequences per GPU.
        checkpointing: a mode of llama_fsdp.
        gpus: how many there were.
        speed: tokens/s per GPU; None where the run ended out of memory.
        memory: GiB reserved at the peak; None where it was not published.
    """

    model: str
    batch: int
    checkpointing: str
    gpus: int
    speed: float | None
    memory: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of one source, all measured on the same machines.

    Attributes:
        title: the heading of the results.
        source: where and when the rows were published.
        card: the GPU model.
        rows: the published rows.
    """

    title: str
    source: str
    card: str
    rows: tuple[Row, ...]


TABLES = (
    Table("torchtitan on 64 A100, 2024",
          f"[docs/performance.md]({TORCHTITAN}/041336434916bdc0f88c1f89fda176fd3c2092e4/docs/"
          "performance.md) of torchtitan at commit 0413364, both of its tables and footnote 1 (the "
          "row that runs out of memory). 64 A100 with 80 GB. The nodes are not described; these "
          "predictions assume 8 DGX A100 with 8 x 200 Gbit/s of InfiniBand each.",
          "a100-80gb",
          (Row("Llama 3 8B", 1, "layer", 64, 2904), Row("Llama 3 8B", 1, "op", 64, 2973),
           Row("Llama 3 70B", 1, "full", 64, 331), Row("Llama 2 13B", 2, "none", 64, 2162),
           Row("Llama 2 13B", 2, "layer", 64, 1914), Row("Llama 2 13B", 2, "op", 64, 1904),
           Row("Llama 2 70B", 1, "op", 64, 355), Row("Llama 2 70B", 2, "full", 64, 353),
           Row("Llama 2 70B", 2, "op", 64, None))),
    Table("torchtitan on 8 and 128 H100, December 2024",
          f"[benchmarks/llama3_h100_202412_torchtitan.md]({TORCHTITAN}/"
          "31a17bfdb70bab6f62a13d21816a5339b911d6e3/benchmarks/llama3_h100_202412_torchtitan.md) "
          "of torchtitan at commit 31a17bf, the first rows of tables 1 and 3. Nodes of 8 H100 with "
          "96 GB of HBM2e at 2.4 TB/s, 400 Gbit/s per GPU, limited to 500 W of their 700 W. The "
          "memory's size and speed are modeled; the power limit is not. All other rows of that "
          "page use torch.compile, most with float8, and neither is modeled in full.",
          GRAND_TETON,
          (Row("Llama 3 8B", 2, "op", 8, 5762, 82.4), Row("Llama 3 8B", 2, "op", 128, 5605, 67.0))),
)
NOTES = """Made by benchmarks/virtualrun_published.py, which runs benchmarks/llama_fsdp.py, a plain
PyTorch program, on virtual GPUs. One process stands for all ranks.

- Nothing was fitted to these rows. The GPU models and the network were calibrated on other
  measurements (docs/virtual-gpus.md). All rows below are known to the authors, who had compared a
  prototype with them before, so this is not a blind test.
- The error is predicted / published - 1, so a positive error means that the prediction is too fast
  or needs too much memory.
- The program makes the choices of torchtitan's configurations: FSDP2, bf16 parameters with fp32
  reductions, no torch.compile, RMSNorm without a fused kernel, AdamW, and gradient clipping.
  Checkpointing "layer" recomputes every second layer; "op" saves attention and every second matmul.
- PyTorch of late 2024 used FlashAttention on H100, because cuDNN's kernel was
  [opt-in](https://github.com/pytorch/pytorch/pull/138522). So cuDNN's attention is disabled here.
- Memory is what PyTorch has reserved at the peak. The model leaves out fragmentation, which is
  probably one reason for predictions that are too low."""

FIRST = """## First comparison

The first version of this page, of November 23, 2026, predicted, with the same programs and rows:

| table | tokens/s: mean absolute error | bias | largest | memory |
| --- | --- | --- | --- | --- |
| 64 A100 | 4.6% | +4.6% | 11.4% | - |
| 8 and 128 H100 | 27.1% | +27.1% | 29.9% | -16.7% and -13.2% |

Since then, FSDP2's copies, optimizers' kernels over lists of tensors, lookups, SiLU's gradient, and
cuBLAS's workspaces have been modeled after ATen's sources and after an H100. None of this was
fitted to the rows above.
"""


def predict(table: Table, row: Row) -> tuple[float, float] | None:
    """Return tokens/s per GPU and GiB reserved; None where the program runs out of memory."""
    flags = [f"--{name}={value}" for name, value in zip(NAMES, MODELS[row.model], strict=True)]
    flags += [f"--batch={row.batch}", f"--checkpointing={row.checkpointing}"]

    def program() -> tuple[float, float] | None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            return llama_fsdp.run(flags)
        except torch.cuda.OutOfMemoryError:
            return None

    (rank,) = virtualgpu.run(program, f"{table.card}:8", nodes=row.gpus // 8, present=[0])
    if rank.error:
        raise SystemExit(f"{table.title}, {row}: {rank.error}")
    if rank.unknown:
        raise SystemExit(f"{table.title}, {row}: operations without a cost rule: {rank.unknown}")
    return rank.value


def compare(table: Table) -> list[str]:
    """Return the lines of a table's results."""
    lines = ["| model | GPUs | batch | checkpointing | tokens/s per GPU | published | error "
             "| memory, GiB | published | error |", "|" + " --- |" * 10]
    speeds, memories, outcomes = [], [], []
    for row in table.rows:
        found = predict(table, row)
        outcomes.append((found is None) == (row.speed is None))
        speed, memory = found or (None, None)
        cells = [row.model, str(row.gpus), str(row.batch), row.checkpointing,
                 *cell(speed, row.speed, speeds, 0), *cell(memory, row.memory, memories, 1)]
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    fits = f"{sum(outcomes)} of {len(outcomes)} rows fit or run out of memory as published."
    summary = [f"- {summarize('tokens/s', speeds)}", f"- {fits}"]
    if memories:
        summary.append(f"- {summarize('memory', memories)}")
    return [f"## {table.title}", "", table.source, "", *summary, "", *lines, ""]


def cell(found: float | None, published: float | None, errors: list[float], digits: int
         ) -> tuple[str, str, str]:
    """Format one figure, and collect its error.

    Args:
        found: the prediction; None where the program ran out of memory.
        published: the measurement; None where there is none.
        errors: the list to extend.
        digits: decimals to print; 0 for tokens/s, which only a run out of memory lacks.
    """
    missing = "-" if digits else "out of memory"
    predicted, measured = (missing if value is None else f"{value:.{digits}f}"
                           for value in (found, published))
    if found is None or published is None:
        return predicted, measured, "-"
    errors.append(found / published - 1)
    return predicted, measured, f"{errors[-1]:+.1%}"


def summarize(name: str, errors: list[float]) -> str:
    return (f"{name}: mean absolute error {mean(map(abs, errors)):.1%}, bias {mean(errors):+.1%}, "
            f"largest {max(map(abs, errors)):.1%}, in {len(errors)} rows")


def main() -> None:
    lines = ["# virtualrun against published measurements", "", *NOTES.splitlines(), ""]
    for table in TABLES:
        start = time.perf_counter()
        found = compare(table)
        lines += found
        print("\n".join(found[4:7]), f"({time.perf_counter() - start:.0f} s)\n", flush=True)
    RESULT.write_text("\n".join([*lines, *FIRST.splitlines(), ""]))


if __name__ == "__main__":
    main()

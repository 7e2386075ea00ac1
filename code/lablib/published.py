"""Published figures of large training runs, which lab 07's students predict before they see them.

Each figure is as published, and each group names its source. benchmarks/published has the rows that
modeled times are compared with; tests/lablib/test_published.py compares the rows that both have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from labcore.colors import result
from layout_estimator import costs
from minimegatron.formulas import Gpt, step_flops
from virtualgpu.core.cards import CARDS

if TYPE_CHECKING:
    from pipeline_schedules import Drawing


class Row(NamedTuple):
    """A training run of table 1 of Narayanan et al. 2021, https://arxiv.org/abs/2104.04473.

    All have 2,048 tokens, 51,200 words, fp16, and full recomputation.

    Attributes:
        name: number of parameters, such as "1.7B".
        layers, hidden, heads: of the model.
        gpus: A100s with 80 GB, eight per node.
        tp, pp: tensor- and pipeline-parallel size.
        micro_batch, batch: in sequences.
        teraflops: throughput per GPU in TFLOP/s, including recomputation.
        more_flags: other flags of the authors' scripts (Megatron-LM, examples/sc21).
    """

    name: str
    layers: int
    hidden: int
    heads: int
    gpus: int
    tp: int
    pp: int
    micro_batch: int
    batch: int
    teraflops: int
    more_flags: str = ""

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step of each replica."""
        return self.batch * self.tp * self.pp // (self.gpus * self.micro_batch)

    @property
    def chunks(self) -> int:
        """Chunks of layers per stage, which the interleaved schedule alternates between."""
        name, _, layers = self.more_flags.partition(" ")
        per_chunk = int(layers) if name == "--num-layers-per-virtual-pipeline-stage" else None
        return self.layers // (self.pp * per_chunk) if per_chunk else 1

    @property
    def flags(self) -> str:
        """The trainer's flags that estimate this run."""
        return ("--device virtual:a100-80gb --software-stack megatron-2021 "
                f"--world-size {self.gpus} --num-layers {self.layers} "
                f"--hidden-size {self.hidden} "
                f"--num-attention-heads {self.heads} --seq-length 2048 "
                "--max-position-embeddings 2048 --vocab-size 51200 --fp16 "
                f"--tensor-model-parallel-size {self.tp} --pipeline-model-parallel-size {self.pp} "
                f"--micro-batch-size {self.micro_batch} --global-batch-size {self.batch} "
                "--scatter-gather-tensors-in-pipeline --recompute-granularity full "
                f"--recompute-method uniform {self.more_flags}")


# Narayanan et al. 2021, table 1.
TABLE_1 = (
    Row("1.7B", 24, 2304, 24, 32, 1, 1, 16, 512, 137, "--overlap-grad-reduce"),
    Row("3.6B", 30, 3072, 32, 64, 2, 1, 16, 512, 138, "--overlap-grad-reduce"),
    Row("7.5B", 36, 4096, 32, 128, 4, 1, 16, 512, 142, "--overlap-grad-reduce"),
    Row("18.4B", 40, 6144, 48, 256, 8, 1, 8, 1024, 135, "--overlap-grad-reduce"),
    Row("39.1B", 48, 8192, 64, 512, 8, 2, 4, 1536, 138),
    Row("76.1B", 60, 10240, 80, 1024, 8, 4, 2, 1792, 140,
        "--num-layers-per-virtual-pipeline-stage 5"),
    Row("145.6B", 80, 12288, 96, 1536, 8, 8, 2, 2304, 148,
        "--num-layers-per-virtual-pipeline-stage 5"),
    Row("310.1B", 96, 16384, 128, 1920, 8, 16, 1, 2160, 155,
        "--num-layers-per-virtual-pipeline-stage 3"),
    Row("529.6B", 105, 20480, 128, 2520, 8, 35, 1, 2520, 163,
        "--num-layers-per-virtual-pipeline-stage 1"),
    Row("1008.0B", 128, 25600, 160, 3072, 8, 64, 1, 3072, 163),
)
# The same paper, section 5.1: days for 300 billion tokens on 1,024 A100s, and for 450 billion on
# 3,072.
DAYS = {"GPT-3": 34, "a trillion": 84}
# Smith et al. 2022, https://arxiv.org/abs/2201.11990, section 2.4: seconds of an iteration of 1,920
# sequences on 280 nodes of 8 A100s; its pretraining took 270 billion tokens.
MT_NLG = {"seconds": 60.1, "batch": 1920, "sequence": 2048, "tokens": 270e9, "gpus": 2240}


class Run(NamedTuple):
    """A training run whose cost was published.

    Attributes:
        name: of the model.
        active: parameters that process each token.
        tokens: in pretraining.
        card, precision: the GPU model, and the precision of the peak that it is measured against.
        gpus: at most.
        gpu_hours: of the run that the source counts.
        watts: rated power of a GPU, from its data sheet.
        source: address.
    """

    name: str
    active: float
    tokens: float
    card: str
    precision: str
    gpus: int
    gpu_hours: float
    watts: int
    source: str

    @property
    def share(self) -> float:
        """6ND, divided by the FLOPs that the GPUs could execute at peak in these GPU-hours."""
        peak = CARDS[self.card].tflops[self.precision] * 1e12
        return 6 * self.active * self.tokens / (self.gpu_hours * 3600 * peak)


RUNS = (
    # Le Scao et al. 2022: parameters, tokens, GPUs, hours. 433,196 kWh: Luccioni et al. 2022,
    # https://arxiv.org/abs/2211.02001.
    Run("BLOOM", 176.247e9, 366e9, "a100-80gb", "bf16", 384, 1_082_990, 400,
        "https://arxiv.org/abs/2211.05100"),
    # 33 days on 1,024 A100s for 300 billion tokens, "assuming no hardware issues"; the run took
    # about two months on 992 (Zhang et al. 2022, https://arxiv.org/abs/2205.01068).
    Run("OPT-175B", 175e9, 300e9, "a100-80gb", "fp16", 1024, 33 * 24 * 1024, 400,
        "https://github.com/facebookresearch/metaseq/blob/main/projects/OPT/chronicles/"
        "final_update.md"),
    # Hours: the model card. Tokens and GPUs: Grattafiori et al. 2024,
    # https://arxiv.org/abs/2407.21783.
    Run("Llama 3.1 405B", 405e9, 15.6e12, "h100-80gb", "bf16", 16_384, 30.84e6, 700,
        "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md"),
    # DeepSeek-AI 2024: its hours are of H800s, which compute like H100s; most GEMMs are in FP8.
    Run("DeepSeek-V3", 37e9, 14.8e12, "h100-80gb", "bf16", 2048, 2.664e6, 700,
        "https://arxiv.org/abs/2412.19437"),
)
# The log line that BLOOM's authors published after the batch had grown to its full size, of 384
# A100s: https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml/chronicles.md
BLOOM_LINE = (
    "iteration 12695/115311 | consumed samples: 9841584 | consumed tokens: 20155564032 | elapsed "
    "time per iteration (s): 105.22 | global batch size: 2048 | number of skipped iterations: 0 | "
    "samples per second: 19.463 | TFLOPs: 149.02 |")
# From the same page: evaluation takes 12 minutes every 1,000 iterations, and a checkpoint 40
# seconds, every 100 iterations from March 22 on; 20 billion tokens took the first 7 days. Days of
# the whole run: Luccioni et al. 2022, table 1 (118 days and almost 6 hours).
BLOOM_PAUSES = {"evaluate_every": 1000, "evaluate": 12 * 60.0, "save_every": 100, "save": 40.0}
BLOOM_DAYS = 118.2


def modeled(rows: Sequence[Row]) -> dict[str, float]:
    """Return what the virtual GPUs estimate for rows: TFLOP/s per GPU, by name."""
    found = costs.of({row.name: row.flags for row in rows}, "")
    return {row.name: step_flops(Gpt(row.layers, row.hidden, row.heads, 2048, 51200), row.batch,
                                 "full") / (cost.milliseconds * 1e9 * row.gpus)
            for row, cost in zip(rows, found, strict=True)}


def compare(rows: Sequence[Row], predicted: Mapping[str, float], virtual: Mapping[str, float]
            ) -> None:
    """Print the published throughput of rows beside a prediction and the virtual GPUs' estimate.

    Args:
        rows: of table 1.
        predicted: TFLOP/s per GPU, by name.
        virtual: the same, as modeled returns it.
    """
    heads = zip(("published", "you", "error", "virtual", "error"), (10, 8, 9, 9, 9), strict=True)
    print(f"{'TFLOP/s per GPU':16}" + "".join(f"{head:>{width}}" for head, width in heads))
    for row in rows:
        mine, model = predicted[row.name], virtual[row.name]
        print(f"{row.name:16}{row.teraflops:10}{mine:8.0f}{mine / row.teraflops - 1:+9.1%}"
              f"{model:9.1f}{model / row.teraflops - 1:+9.1%}")
    errors = [sum(abs(made[row.name] / row.teraflops - 1) for row in rows) / len(rows)
              for made in (predicted, virtual)]
    print(f"mean error: you {result(f'{errors[0]:.1%}')}, the virtual GPUs {errors[1]:.1%}")


def draw(rows: Sequence[Row], predicted: Mapping[str, float], virtual: Mapping[str, float]
         ) -> Drawing:
    """Plot throughput over the number of parameters: published, predicted, and modeled.

    Args:
        rows: of table 1.
        predicted: TFLOP/s per GPU, by name; those that are not positive are left out.
        virtual: the same, as modeled returns it.
    """
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    published = {row.name: row.teraflops for row in rows}
    lines = {"published": published, "you": predicted, "virtual GPUs (modeled)": virtual}
    for (name, values), style in zip(lines.items(), ("o-", "s--", "^:"), strict=True):
        known = [row.name for row in rows if values[row.name] > 0]
        axes.plot([float(one.removesuffix("B")) for one in known], [values[one] for one in known],
                  style, label=name, markersize=5)
    axes.set(xscale="log", xlabel="billions of parameters", ylabel="TFLOP/s per GPU",
             title="Weak scaling from 32 to 3,072 A100s (Narayanan et al., 2021, table 1)")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return Drawing(figure, "Throughput over model size: " + "; ".join(
        f"{name} from {values[rows[0].name]:.0f} to {values[rows[-1].name]:.0f} TFLOP/s per GPU"
        for name, values in lines.items()) + ".")


def compare_hours(predicted: Mapping[str, float]) -> None:
    """Print the published cost of RUNS, in millions of GPU-hours, beside a prediction."""
    print(f"{'million GPU-hours':18}{'published':>10}{'you':>8}{'error':>9}{'of the peak':>13}")
    for run in RUNS:
        hours, mine = run.gpu_hours / 1e6, predicted[run.name]
        print(f"{run.name:18}{hours:10.2f}{mine:8.2f}{mine / hours - 1:+9.0%}"
              f"{result(f'{run.share:13.1%}')}  {run.source}")

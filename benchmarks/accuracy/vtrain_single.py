"""vTrain's measured iterations on one node, from a file that is not part of this repository."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean

from benchmarks.accuracy.evaluate import errors
from benchmarks.vtrain import DEEPSPEED_A100, ODD, Row, flags_of, read
from layout_estimator.estimate import Estimator
from minimegatron.arguments import parse_arguments
from minimegatron.data.vocabulary import pad_vocab_size

ABOUT = """The rows with an odd index of VIA-Research/vTrain's ground_truth_single.csv (MICRO 2024):
Megatron-DeepSpeed on 2 to 8 A100. virtual_calibration.py fits constants to the even rows."""


def vtrain_single(path: str) -> dict:
    """Return the results, in the form of a set's results, but without the rows."""
    estimator, jobs, outcomes = Estimator(DEEPSPEED_A100), defaultdict(list), []
    for row in read(path, ODD):
        found = predicted(estimator, row)
        outcomes.append({"name": f"{row.hidden}/{row.layers}", "layout": f"TP {row.tp}, DP {row.dp}"
                         f", PP {row.pp}, batch {row.batch}, micro-batch {row.micro_batch}",
                         "published": row.seconds, "predicted": found, "fits": True,
                         "published_fits": True})
        jobs[row.gpus, row.batch, row.hidden, row.layers].append((found, row.seconds))
    regrets = [min(plans)[1] / min(real for _, real in plans) - 1 for plans in jobs.values()]
    return {"title": "vTrain: Megatron-DeepSpeed on 2 to 8 A100", "about": ABOUT,
            "summary": {"test": errors(outcomes)},
            "more": ["choosing the plan that is predicted to be the fastest costs "
                     f"{mean(regrets):.1%} on average over {len(jobs)} jobs, {max(regrets):.1%} at "
                     "worst"]}


def predicted(estimator: Estimator, row: Row) -> float:
    """Return the estimated seconds per iteration.

    Args:
        estimator: of Megatron-DeepSpeed on A100.
        row: the measured row.
    """
    config = parse_arguments(flags_of(row).split(), {"RANK": "0", "WORLD_SIZE": str(row.gpus)})
    return estimator.estimate(config, pad_vocab_size(50257, 128, row.tp)).seconds

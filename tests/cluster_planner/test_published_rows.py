"""AMP's formula gives the step times that its authors' program printed."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cluster_planner.partition import modeled_time
from cluster_planner.stages import Stages

PRINTED = json.loads(Path(__file__).with_name("amp_het_model.json").read_text())
GPUS, PER_NODE, BATCH = 16, 4, 64
NEAR, FAR = 170e9 / 32, 10e9 / 32  # elements/s within a node, and between nodes
ELEMENTS = 1024 * 9**2  # that a stage sends to the next one for a sample
ROWS = [pytest.param(row, id=f"{row['tensor']}-{row['micro_batch']}-{len(row['partition'])}")
        for row in PRINTED["rows"]]


def sends(row):
    """Return the seconds of a message across each boundary: the mean of the replicas."""
    tensor, stages = row["tensor"], len(row["partition"])
    width = GPUS // stages
    return np.array([np.mean([
        row["micro_batch"] * ELEMENTS / min(
            NEAR if rank // PER_NODE == (rank + width) // PER_NODE else FAR
            for rank in range(first, first + tensor))
        for first in range(stage * width, (stage + 1) * width, tensor)])
        for stage in range(stages - 1)])


def modeled(row, split):
    """Return the formula's time of a partition; AMP counts every send in one direction."""
    layers = row["micro_batch"] * np.array(PRINTED["seconds_of_layers"][str(row["tensor"])])
    ends = np.cumsum([0, *split])
    forward = np.zeros((len(split), len(layers) + 1))
    for stage, (start, stop) in enumerate(pairwise(ends)):
        forward[stage, split[stage]] = layers[start:stop].sum()
    replicas = GPUS // row["tensor"] // len(split)
    zeros = np.zeros_like(forward)
    return modeled_time(Stages(
        BATCH // (replicas * row["micro_batch"]), "1f1b", forward, zeros, zeros == 0, zeros,
        sends(row) / 2, zeros, zeros), tuple(split))


@pytest.mark.parametrize("row", ROWS)
def test_the_formula_gives_the_printed_step(row):
    assert modeled(row, row["partition"]) + row["synchronization"] == pytest.approx(
        row["step"], abs=1.5e-4)


@pytest.mark.parametrize("row", [row for row in ROWS if len(row.values[0]["partition"]) == 2])
def test_no_partition_into_two_stages_beats_the_printed_one(row):
    layers = sum(row["partition"])
    times = {cut: modeled(row, (cut, layers - cut)) for cut in range(1, layers)}
    assert min(times, key=times.get) == row["partition"][0]

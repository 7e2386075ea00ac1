"""Small models, clusters, and profiles for the planner's tests; no virtual GPU runs."""

from dataclasses import replace
from itertools import product

import numpy as np

from cluster_planner.profiles import (
    RECOMPUTE,
    Key,
    ModelSpec,
    PartProfile,
    Profile,
    TableProfiles,
)
from cluster_planner.stages import Stages

INTEGER_CASES = 24
MODEL = ModelSpec(6, 256, 512, 1024, "fp16", 16)
SPEED = {"a100-80gb": 1.0, "a10": 3.0, "t4": 6.5}
CASE = {"layers": 8, "global_batch": 8, "replicas": [1, 2], "link": 0.5, "state": 0.5,
        "activation": 0.1, "gradients": 0.1, "kinds": {
            "fast": {"gpus": 2, "per_node": 2, "embedding": [0, 0], "layer": [1, 2],
                     "head": [1, 1], "memory": 8, "inside": 100, "network": 10},
            "slow": {"gpus": 2, "per_node": 1, "embedding": [0, 0], "layer": [2, 4],
                     "head": [2, 2], "memory": 4, "inside": 100, "network": 10}}}


def profiles():
    """Return made-up profiles whose parameters are those of MODEL."""
    known = {}
    for (gpu, slow), tensor, size, again in product(SPEED.items(), (1, 2), (1, 2, 4, 8), RECOMPUTE):
        time = slow * (size + 0.3) / tensor**0.8 * 1e-3
        back = 2 + 0.9 * (again == "full") + 0.1 * (again == "selective")
        saved = size * 1e8 / {"none": 1, "selective": 2, "full": 10}[again] / tensor

        def part(share, parameters, time=time, back=back, saved=saved, tensor=tensor, slow=slow):
            return PartProfile(share * time, back * share * time, parameters // tensor,
                               share * saved, 1e7, slow * parameters * 1e-12)

        parts = part(0.05, 400_000), part(1.0, 800_000), part(0.6, 300_000)
        known[Key(gpu, tensor, size, again)] = Profile(*parts)
        known[Key(gpu, tensor, size, again, True)] = Profile(*(
            replace(one, backward=0.6 * one.backward, weight=0.4 * one.backward,
                    held_bytes=0.5 * one.activation_bytes) for one in parts))
    return TableProfiles(known)


def random_stages(random, stages, layers, micro_batches, schedule):
    """Return stages with random speeds, memory, and links."""
    counts, speeds = np.arange(layers + 1), random.uniform(1, 4, size=(stages, 1))
    edges = np.zeros((stages, 1))
    edges[0], edges[-1] = random.uniform(0, 1, 2)
    least = np.ones((stages, 1), dtype=int)
    least[0] = least[-1] = 0
    most = random.integers(max(1, layers // stages), layers + 1, size=(stages, 1))
    forward = speeds * (counts + edges)
    ratios = random.uniform(1.5, 3, size=(stages, 1))
    return Stages(micro_batches, schedule, forward, ratios * forward,
                  (counts >= least) & (counts <= most), np.zeros_like(forward),
                  random.uniform(0, 2, stages - 1), 0.1 * forward, 0.05 * forward, 0.5)


def every_split(stages):
    """Return all partitions that fit."""
    count, width = stages.fits.shape
    return [split for split in product(range(width), repeat=count)
            if sum(split) == width - 1 and stages.fits[range(count), split].all()]


def integer_stages(seed):
    """Return stages whose times are integers and linear in the layers, for an integer program."""
    random = np.random.default_rng(seed)
    count, layers = int(random.integers(2, 6)), int(random.integers(8, 25))
    counts = np.arange(layers + 1)

    def times(low, high):
        edges = np.zeros((count, 1), dtype=int)
        edges[0], edges[-1] = random.integers(0, high, 2)
        return edges + random.integers(low, high, size=(count, 1)) * counts

    least = np.ones((count, 1), dtype=int)
    least[0] = least[-1] = 0
    most = random.integers(-(-layers // count), layers + 1, size=(count, 1))
    forward, backward = times(10, 50), times(20, 100)
    return Stages(int(random.integers(1, 9)), "1f1b", forward, backward,
                  (counts >= least) & (counts <= most), np.zeros_like(forward),
                  random.integers(0, 60, count - 1), times(1, 9), times(1, 5),
                  float(random.integers(0, 40)))

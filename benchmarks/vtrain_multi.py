"""vTrain's measured iterations on several nodes: Megatron-DeepSpeed on 64 to 512 A100.

From VIA-Research/vTrain (MICRO 2024; Copyright (c) 2024, VIA Research Group at KAIST, MIT license),
data/ground_truth_multi.csv: the rows with an even index. They have been looked at while the model
was changed; the odd ones have not, so they remain a clean test. The network is that of its
config/validation/multi: 8 GPUs and 800 Gbit/s per node, which is four HDR adapters.
"""

from __future__ import annotations

from vtrain import Row

NETWORK = "infiniband:4x200gbit"
# GPUs, global batch, hidden size, attention heads, layers.
MODELS = {
    "3.6B": (64, 512, 3072, 32, 30),
    "18.4B": (256, 1024, 6144, 48, 40),
    "39.1B": (512, 1536, 8192, 64, 48),
    "175B": (512, 1536, 12288, 96, 96),
}
# Model: (micro-batch, tensor-parallel, data-parallel, pipeline-parallel size, seconds).
SECONDS = {
    "3.6B": (
        (8, 1, 64, 1, 3.5665), (8, 2, 32, 1, 3.9752), (16, 2, 32, 1, 3.9375), (2, 2, 32, 1, 4.2642),
        (32, 4, 16, 1, 4.5482), (4, 4, 16, 1, 4.764), (2, 1, 32, 2, 4.0349), (8, 1, 32, 2, 5.0456),
        (32, 8, 8, 1, 4.9723), (8, 8, 8, 1, 5.178), (2, 8, 8, 1, 8.8809), (16, 16, 4, 1, 10.7193),
        (4, 16, 4, 1, 11.9601),
    ),
    "18.4B": (
        (8, 8, 32, 1, 9.6036), (4, 8, 32, 1, 9.9276), (8, 4, 32, 2, 10.8563),
        (2, 4, 32, 2, 10.0316), (4, 1, 32, 8, 12.379), (2, 8, 8, 4, 10.9264),
        (8, 2, 16, 8, 13.1575), (32, 8, 4, 8, 16.2414),
    ),
    "39.1B": (
        (2, 4, 32, 4, 13.8755), (3, 4, 32, 4, 16.1855), (2, 4, 16, 8, 16.0706),
        (3, 4, 16, 8, 17.6061), (3, 2, 16, 16, 26.1888), (6, 4, 32, 4, 18.5321),
        (8, 8, 32, 2, 15.2128), (12, 8, 32, 2, 17.1268), (3, 4, 8, 16, 15.0239),
        (4, 4, 8, 16, 15.5855), (6, 4, 16, 8, 16.087), (4, 8, 16, 4, 14.7507),
        (2, 8, 8, 8, 15.0019), (3, 8, 8, 8, 15.2707), (6, 4, 8, 16, 20.0441),
        (12, 8, 16, 4, 17.1824), (2, 8, 4, 16, 15.6394), (3, 8, 4, 16, 16.3608),
        (4, 8, 4, 16, 15.9445), (6, 2, 16, 16, 27.2284), (12, 4, 16, 8, 20.6148),
        (12, 8, 4, 16, 18.5683), (24, 8, 8, 8, 23.1711),
    ),
    "175B": (
        (2, 4, 8, 16, 54.2559), (2, 4, 4, 32, 53.9096), (3, 4, 4, 32, 56.2972),
        (4, 4, 8, 16, 57.72), (3, 8, 8, 8, 56.1765), (4, 4, 4, 32, 59.3332), (3, 8, 4, 16, 55.6775),
        (2, 8, 2, 32, 58.5554), (3, 2, 8, 32, 64.2963), (6, 4, 4, 32, 66.6325),
        (6, 8, 2, 32, 62.6368),
    ),
}


def read() -> list[Row]:
    """Return the measured iterations."""
    found = []
    for model, runs in SECONDS.items():
        gpus, batch, hidden, heads, layers = MODELS[model]
        found += [Row(gpus, batch, micro_batch, hidden, heads, layers, 2048, tp, dp, pp, seconds)
                  for micro_batch, tp, dp, pp, seconds in runs]
    return found

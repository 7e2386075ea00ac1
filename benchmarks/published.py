"""What others measured, for comparing predictions with; never for choosing a constant of a model.

One place for every figure, with its source.
"""

from __future__ import annotations

from typing import NamedTuple

from minimegatron.formulas import Gpt


class Table1(NamedTuple):
    """A row of Narayanan et al. 2021 ("Efficient Large-Scale Language Model Training on GPU
    Clusters Using Megatron-LM", SC21), table 1, and how its script (examples/sc21/run_table_1.sh of
    Megatron-LM) ran it. chunk: layers of a chunk where the schedule is interleaved, else 0. torch:
    whether torch's DDP summed the gradients, while the backward pass went on."""

    name: str
    hidden: int
    layers: int
    heads: int
    tp: int
    pp: int
    micro_batch: int
    gpus: int
    batch: int
    teraflops: float  # per GPU, by the paper's formula
    chunk: int
    torch: bool

    @property
    def gpt(self) -> Gpt:
        return Gpt(self.layers, self.hidden, self.heads, 2048, 51200)


NARAYANAN = (
    Table1("1.7B", 2304, 24, 24, 1, 1, 16, 32, 512, 137, 0, True),
    Table1("3.6B", 3072, 30, 32, 2, 1, 16, 64, 512, 138, 0, True),
    Table1("7.5B", 4096, 36, 32, 4, 1, 16, 128, 512, 142, 0, True),
    Table1("18.4B", 6144, 40, 48, 8, 1, 8, 256, 1024, 135, 0, True),
    Table1("39.1B", 8192, 48, 64, 8, 2, 4, 512, 1536, 138, 0, False),
    Table1("76.1B", 10240, 60, 80, 8, 4, 2, 1024, 1792, 140, 5, False),
    Table1("145.6B", 12288, 80, 96, 8, 8, 2, 1536, 2304, 148, 5, False),
    Table1("310.1B", 16384, 96, 128, 8, 16, 1, 1920, 2160, 155, 3, False),
    Table1("529.6B", 20480, 105, 128, 8, 35, 1, 2520, 2520, 163, 1, False),
    Table1("1008.0B", 25600, 128, 160, 8, 64, 1, 3072, 3072, 163, 0, False),
)


class Korthikanti(NamedTuple):
    """A row of Korthikanti et al. 2022 ("Reducing Activation Recomputation in Large Transformer
    Models"), tables 3 and 5: s 2048, V 51200, fp16 on A100-80GB. chunk: as above; full, selective:
    seconds per iteration with full recompute, and with sequence parallelism and selective."""

    name: str
    heads: int
    hidden: int
    layers: int
    tp: int
    pp: int
    gpus: int
    batch: int
    micro_batch: int
    chunk: int
    full: float
    selective: float


KORTHIKANTI = (
    Korthikanti("22B", 64, 6144, 48, 8, 1, 8, 4, 4, 0, 1.42, 1.10),
    Korthikanti("175B", 96, 12288, 96, 8, 8, 64, 64, 1, 4, 18.13, 13.75),
    Korthikanti("530B", 128, 20480, 105, 8, 35, 280, 280, 1, 1, 49.05, 37.83),
    Korthikanti("1T", 160, 25600, 128, 8, 64, 512, 512, 1, 0, 94.42, 71.49),
)

# Rajbhandari et al. 2020 (ZeRO), figure 1 and section 3: GB per GPU of a 7.5B model, mixed
# precision with Adam (K = 12): {GPUs: (stage 0, 1, 2, 3)}.
ZERO_PARAMETERS = 7.5e9
ZERO_GB = {64: (120, 31.4, 16.6, 1.9)}

# Parameters in billions of Narayanan et al.'s table 1, in the order above.
NARAYANAN_BILLIONS = (1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0)

# The classic course's job on V100-SXM2-16GB, 2 nodes x 2, 25 Gbit/s between nodes: seconds per
# iteration of data parallelism over 4 at micro-batch 2, share of communication, GB at the peak.
CLASSIC = {"seconds": 0.54, "communication": 0.5, "peak": 10e9}

"""What a run costs, on paper: the one source for the log, the planner and the labs.

Papers: Narayanan et al. 2021 (Megatron-LM on clusters, SC21), Korthikanti et al. 2022 (activation
recomputation), Rajbhandari et al. 2020 (ZeRO). In their letters: l layers, h hidden size, a heads,
s sequence length, V padded vocabulary, b micro-batch and B global batch in samples, t tensor- and
p pipeline-parallel size, m micro-batches of a step, v chunks of a stage, d replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Gpt:
    """A GPT's shape. None: ffn is 4 x hidden, kv_channels hidden / heads, positions sequence."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    ffn: int | None = None
    kv_channels: int | None = None
    positions: int | None = None

    @property
    def wide(self) -> int:
        """Width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def inner(self) -> int:
        """Width of all heads together; h unless kv_channels says otherwise."""
        return self.heads * self.kv_channels if self.kv_channels else self.hidden


# Parameters.

def layer_parameters(gpt: Gpt, t: int = 1) -> int:
    """Of one layer on one tensor-parallel rank: matrices and their wide biases are divided, norms
    and the biases behind a sum are copied. With t = 1 it is 12 h^2 + 13 h."""
    h, inner, wide = gpt.hidden, gpt.inner, gpt.wide
    divided = 4 * h * inner + 3 * inner + 2 * h * wide + wide
    return divided // t + 6 * h


def stage_parameters(gpt: Gpt, layers: int, t: int = 1, first: bool = True, last: bool = True
                     ) -> int:
    """Of a stage with so many layers, on one tensor-parallel rank. The last stage holds the word
    embedding (as output matrix) a second time where it is not the first one too."""
    word = gpt.vocabulary * gpt.hidden // t if first or last else 0
    positions = (gpt.positions or gpt.sequence) * gpt.hidden if first else 0
    return layers * layer_parameters(gpt, t) + word + positions + (2 * gpt.hidden if last else 0)


def parameters(gpt: Gpt) -> int:
    """12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)) (Narayanan et al. 2021, eq. 2), and the 2h of the
    last norm, which the paper leaves out."""
    return stage_parameters(gpt, gpt.layers)


# FLOPs and time.

def step_flops(gpt: Gpt, batch: int, recompute: str | None = None, causal: bool = False) -> float:
    """FLOPs of one optimizer step on `batch` samples: the matrix products of a forward pass, times
    three (a backward pass costs two), and what is recomputed.

    None: the model's, 72 B s l h^2 (1 + s/(6h) + V/(12lh)) (Korthikanti et al. 2022, appendix A).
    "full": 96 B s l h^2 (1 + s/(6h) + V/(16lh)) (Narayanan et al. 2021, eq. 3).
    "selective": core attention's forward pass once more, s/(4.5h). The paper's hardware FLOPs have
    s/(3h) there, all three passes once more; its HFU figures are that much higher.
    causal: count only the half of core attention that causality leaves, s/(12h) for s/(6h), as
    Megatron core has since 0.12.
    """
    s, h, inner = gpt.sequence, gpt.hidden, gpt.inner
    core = 4 * s * s * inner * (0.5 if causal else 1)
    layer = 8 * s * h * inner + 4 * s * h * gpt.wide + core
    again = {None: 0, "full": layer, "selective": core}[recompute]
    return batch * (gpt.layers * (3 * layer + again) + 6 * s * h * gpt.vocabulary)


def teraflops(flops: float, seconds: float, devices: int = 1) -> float:
    """TFLOP/s per device. Of the model's FLOPs: divided by the peak it is the MFU; with what is
    recomputed, the hardware's share (HFU) (Korthikanti et al. 2022, section 6.3)."""
    return flops / seconds / devices / 1e12


def training_days(parameters: float, tokens: float, devices: int, teraflops_per_device: float,
                  recompute: bool = True) -> float:
    """8 T P / (n X) seconds, in days (Narayanan et al. 2021, eq. 4); 6 T P without recompute."""
    per_token = 8 if recompute else 6
    return per_token * tokens * parameters / (devices * teraflops_per_device * 1e12) / 86400


# Activations.


def layer_activations(gpt: Gpt, b: int, t: int = 1, sequence_parallel: bool = False,
                      recompute: str | None = None, bytes_each: int = 2,
                      attention_dropout: bool = True, hidden_dropout: bool = True) -> float:
    """Bytes that one layer keeps of one micro-batch on one rank (Korthikanti et al. 2022, eq. 1-4,
    6 and table 2).

    With 2 bytes each and dropout: s b h (34 + 5as/h), of which 10 are not divided by t unless the
    sequence is; selective drops 5as/h, full keeps only the layer's input, 2 s b h.
    """
    s, h, inner, wide = gpt.sequence, gpt.hidden, gpt.inner, gpt.wide
    part = t if sequence_parallel else 1
    if recompute == "full":
        return s * b * h * bytes_each / part
    # Both norms' inputs and outputs; two masks of a byte each.
    outside = s * b * h * (4 * bytes_each + (2 if hidden_dropout else 0)) / part
    # Query, key, value and the projection's input; GELU's input and output.
    inside = s * b * (4 * inner + 2 * wide) * bytes_each / t
    # The softmax; with dropout also its mask, and its result.
    core = gpt.heads * s * s * b * (2 * bytes_each + 1 if attention_dropout else bytes_each) / t
    return outside + inside + (0 if recompute == "selective" else core)


def stage_activations(layers: int, kept: float, input: float, method: str | None = None,
                      size: int = 1) -> float:
    """Bytes that a stage's layers keep of one micro-batch.

    kept, input: bytes of a layer that is not recomputed, and of a layer's input. method and size:
    of full recomputation, as in --recompute-method and --recompute-num-layers.
    """
    if method == "uniform":
        return -(-layers // size) * input
    again = min(size, layers) if method == "block" else 0
    return again * input + (layers - again) * kept


def head_activations(gpt: Gpt, b: int, t: int = 1, sequence_parallel: bool = False,
                     bytes_each: int = 2) -> float:
    """Bytes of the last stage's end: last norm's input, output matrix's input, and softmax in fp32
    (Korthikanti et al. 2022, section 4.3: with sequence parallelism 4 s b h / t (1 + V/h))."""
    part = t if sequence_parallel else 1
    return gpt.sequence * b * (2 * gpt.hidden * bytes_each / part + 4 * gpt.vocabulary / t)


def in_flight(p: int, stage: int, m: int, v: int = 1) -> float:
    """Micro-batches whose activations a stage holds at the peak, in units of all its layers.

    1F1B: min(m, p - stage). Interleaved: 2(p - stage - 1) + (v-1)p + 1 chunks, on the first stage
    p (1 + (p-1)/(pv)) (Korthikanti et al. 2022, section 4.2.3). GPipe holds all m.
    """
    if v == 1:
        return min(m, p - stage)
    if m == p:  # all forward passes come first then
        return m
    return min(m, (2 * (p - stage - 1) + (v - 1) * p + 1) / v)


# Model states.

class States(NamedTuple):
    """Bytes per parameter on one rank."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return sum(self)


def state_bytes(precision: str, replicas: int = 1, distributed_optimizer: bool = False) -> States:
    """Of Adam with fp32 masters, in bytes per parameter: "fp32", "fp16" or "bf16".

    fp32: 16, or 8 + 8/d distributed. fp16: 20 (weights and gradients in fp16, and in fp32 masters,
    gradients and two moments), or 4 + 16/d. bf16, gradients in fp32: 18, or 6 + 12/d.
    (Megatron-LM's README, "distributed optimizer".)
    """
    weights, gradients, optimizer = {"fp32": (4, 4, 8), "fp16": (2, 2, 16), "bf16": (2, 4, 12)
                                     }[precision]
    return States(weights, gradients, optimizer / (replicas if distributed_optimizer else 1))


def zero_bytes(stage: int, replicas: int, optimizer: int = 12) -> States:
    """Of ZeRO stages 0 to 3 in mixed precision (Rajbhandari et al. 2020, figure 1): optimizer
    states, then gradients, then weights are divided. optimizer: K of the paper."""
    divided = [replicas if stage >= needed else 1 for needed in (3, 2, 1)]
    return States(2 / divided[0], 2 / divided[1], optimizer / divided[2])


# The pipeline's bubble: two measures, never the one for the other.

def bubble_fraction(p: int, m: int, v: int = 1) -> float:
    """Idle share of the whole step: (p-1) / (v m + p-1)."""
    return (p - 1) / (v * m + p - 1)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """Idle time over the ideal time: (p-1) / (v m) (Narayanan et al. 2021, sections 2.2.1-2)."""
    return (p - 1) / (v * m)

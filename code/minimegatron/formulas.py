"""Formulas for parameters, FLOPs, memory, and bubbles; the logs, planner, and labs use them.

Papers: Narayanan et al. 2021 (Megatron-LM on clusters, SC21), Korthikanti et al. 2022 (activation
recomputation), Rajbhandari et al. 2020 (ZeRO). In their letters: l layers, h hidden size, a heads,
s sequence length, V padded vocabulary, b micro-batch and B global batch in samples, t tensor-, p
pipeline-, and d data-parallel size, m micro-batches per step, v chunks per stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class Gpt:
    """Shape of a GPT.

    Attributes:
        layers, hidden, heads, sequence, vocabulary: l, h, a, s, and V.
        ffn: width of the MLP; 4 h if None.
        kv_channels: width of an attention head; h / a if None.
        positions: learned position embeddings; s if None, and 0 with rotary ones.
        query_groups: key and value heads; a if None (Ainslie et al. 2023).
        gated: whether the MLP has a third matrix (SwiGLU).
        tied: whether the output layer is the word embedding.
        biases: whether linear layers have biases.
        norm_biases: whether norms have biases; those of RMSNorm have none.
        qk_norms: whether each head's queries and keys are normalized.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    ffn: int | None = None
    kv_channels: int | None = None
    positions: int | None = None
    query_groups: int | None = None
    gated: bool = False
    tied: bool = True
    biases: bool = True
    norm_biases: bool = True
    qk_norms: bool = False

    @property
    def mlp_width(self) -> int:
        """Width of the MLP."""
        return self.ffn or 4 * self.hidden

    @property
    def query_width(self) -> int:
        """Width of all query heads together; h unless kv_channels is given."""
        return self.heads * self.kv_channels if self.kv_channels else self.hidden

    @property
    def key_width(self) -> int:
        """Width of all key heads together; the value heads are as wide."""
        return self.query_width * (self.query_groups or self.heads) // self.heads

    @property
    def matrices(self) -> int:
        """Weight elements of a layer's matrices: 4h^2 + 8h^2 in GPT-2."""
        attention = 2 * (self.query_width + self.key_width)
        return self.hidden * (attention + (2 + self.gated) * self.mlp_width)


# Parameters.


def layer_parameters(gpt: Gpt, t: int = 1) -> int:
    """Return the parameters of one layer on one tensor-parallel rank; 12 h^2 + 13 h with t = 1.

    Matrices and the biases of column-parallel layers are partitioned; norms and the biases of
    row-parallel layers are replicated.
    """
    partitioned = gpt.matrices + gpt.biases * (
        gpt.query_width + 2 * gpt.key_width + (1 + gpt.gated) * gpt.mlp_width)
    head_norms = 2 * gpt.qk_norms * gpt.query_width // gpt.heads * (1 + gpt.norm_biases)
    return partitioned // t + 2 * gpt.hidden * (1 + gpt.norm_biases + gpt.biases) + head_norms


def stage_parameters(gpt: Gpt, layers: int, t: int = 1, first: bool = True, last: bool = True
                     ) -> int:
    """Return the parameters of a pipeline stage on one tensor-parallel rank.

    A last stage that is not also the first holds its own copy of the word embedding, as the output
    matrix. Without tying, that is a matrix of its own, on a single stage as well.
    """
    words = first + last if not gpt.tied else first or last
    positions = (gpt.sequence if gpt.positions is None else gpt.positions) * gpt.hidden
    final_norm = gpt.hidden * (1 + gpt.norm_biases)
    return (layers * layer_parameters(gpt, t) + words * (gpt.vocabulary * gpt.hidden // t)
            + first * positions + last * final_norm)


def parameters(gpt: Gpt) -> int:
    """Return the parameters of the model: 12 l h^2 (1 + 13/(12h) + (V+s)/(12lh)) + 2h.

    Source: Narayanan et al. 2021, eq. 2, which leaves out the 2h of the final norm.
    """
    return stage_parameters(gpt, gpt.layers)


# FLOPs and time.


def step_flops(gpt: Gpt, batch: int, recompute: str | None = None, causal: bool = False) -> float:
    """Return the FLOPs of one optimizer step: GEMMs of the forward and backward pass (1 + 2).

    Without recomputation these are the model's FLOPs, 72 B s l h^2 (1 + s/(6h) + V/(12lh))
    (Korthikanti et al. 2022, appendix A). "full" adds a forward pass of every layer, 96 B s l h^2
    (1 + s/(6h) + V/(16lh)) (Narayanan et al. 2021, eq. 3). "selective" adds the forward pass of
    core attention, s/(4.5h); the paper counts all three passes again, s/(3h), so its HFU is higher.

    Args:
        gpt: the model.
        batch: samples per step.
        recompute: None, "full", or "selective".
        causal: count only the half of core attention that the causal mask leaves, s/(12h) instead
            of s/(6h), as Megatron core does since 0.12.
    """
    s = gpt.sequence
    core = 4 * s * s * gpt.query_width * (0.5 if causal else 1)
    layer = 2 * s * gpt.matrices + core
    recomputed = {None: 0, "full": layer, "selective": core}[recompute]
    return batch * (gpt.layers * (3 * layer + recomputed) + 6 * s * gpt.hidden * gpt.vocabulary)


def teraflops(flops: float, seconds: float, devices: int = 1) -> float:
    """Return TFLOP/s per device.

    Divided by the peak, the model's FLOPs give the MFU; with recomputation, they give the HFU
    (Korthikanti et al. 2022, section 6.3).
    """
    return flops / seconds / devices / 1e12


def training_days(parameters: float, tokens: float, devices: int, teraflops_per_device: float,
                  recompute: bool = True) -> float:
    """Return the training time in days, 8 T P / (n X) seconds (Narayanan et al. 2021, eq. 4).

    Without recomputation it is 6 T P / (n X).
    """
    per_token = 8 if recompute else 6
    return per_token * tokens * parameters / (devices * teraflops_per_device * 1e12) / 86400


# Activations.


def layer_activations(gpt: Gpt, b: int, t: int = 1, sequence_parallel: bool = False,
                      recompute: str | None = None, bytes_each: int = 2,
                      attention_dropout: bool = True, hidden_dropout: bool = True) -> float:
    """Return the bytes that one layer saves for the backward pass of a micro-batch, on one rank.

    With 2 bytes per element and dropout: s b h (34 + 5as/h), of which 10 are divided by t only with
    sequence parallelism. Selective recomputation drops 5as/h, and full recomputation saves only the
    layer's input, 2 s b h (Korthikanti et al. 2022, eq. 1-4 and 6, table 2).
    """
    s, h, queries, keys = gpt.sequence, gpt.hidden, gpt.query_width, gpt.key_width
    part = t if sequence_parallel else 1
    if recompute == "full":
        return s * b * h * bytes_each / part
    # Both norms' inputs and outputs; two masks of a byte each.
    outside = s * b * h * (4 * bytes_each + (2 if hidden_dropout else 0)) / part
    # Query, key, value and the projection's input, the inputs of the norms of queries and keys; the
    # activation's input and output.
    width = (2 + gpt.qk_norms) * (queries + keys) + (2 + gpt.gated) * gpt.mlp_width
    inside = s * b * width * bytes_each / t
    # The softmax; with dropout also its mask, and its result. Shared keys and values are repeated.
    core = gpt.heads * s * s * b * (2 * bytes_each + 1 if attention_dropout else bytes_each) / t
    core += 2 * s * b * (queries - keys) * bytes_each / t
    return outside + inside + (0 if recompute == "selective" else core)


def stage_activations(layers: int, saved: float, input: float, method: str | None = None,
                      size: int = 1) -> float:
    """Return the bytes that the layers of a stage save for the backward pass of a micro-batch.

    Args:
        layers: layers of the stage.
        saved: bytes of a layer that is not recomputed.
        input: bytes of a layer's input.
        method: --recompute-method of full recomputation.
        size: --recompute-num-layers.
    """
    if method == "uniform":
        return -(-layers // size) * input
    recomputed = min(size, layers) if method == "block" else 0
    return recomputed * input + (layers - recomputed) * saved


def head_activations(gpt: Gpt, b: int, t: int = 1, sequence_parallel: bool = False,
                     bytes_each: int = 2) -> float:
    """Return the bytes that the output layer saves: inputs of norm and GEMM, and an fp32 softmax.

    With sequence parallelism it is 4 s b h / t (1 + V/h) (Korthikanti et al. 2022, section 4.3).
    """
    part = t if sequence_parallel else 1
    return gpt.sequence * b * (2 * gpt.hidden * bytes_each / part + 4 * gpt.vocabulary / t)


def in_flight(p: int, stage: int, m: int, v: int = 1) -> float:
    """Return the peak number of in-flight micro-batches of a stage, in units of all its layers.

    1F1B: min(m, p - stage). Interleaved: 2(p - stage - 1) + (v-1)p + 1 chunks, which is
    p (1 + (p-1)/(pv)) on the first stage (Korthikanti et al. 2022, section 4.2.3). GPipe: m.
    """
    if v == 1:
        return min(m, p - stage)
    if m == p:  # all forward passes come first
        return m
    return min(m, (2 * (p - stage - 1) + (v - 1) * p + 1) / v)


# Model states.


class States(NamedTuple):
    """Bytes per parameter on one rank.

    Attributes:
        weights: parameters in the training precision.
        gradients: as the backward pass accumulates them.
        optimizer: Adam's two moments, and fp32 master weights in mixed precision.
        main_gradients: fp32 copies of 16-bit gradients. They exist from the optimizer step to the
            next `zero_grad`, never together with activations.
    """

    weights: float
    gradients: float
    optimizer: float
    main_gradients: float = 0.0

    @property
    def resident(self) -> float:
        """Bytes that are allocated during the forward and backward passes, too."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        """Bytes during the optimizer step."""
        return sum(self)


def state_bytes(precision: str, replicas: int = 1, zero_stage: int = 0, offloaded: float = 0.0
                ) -> States:
    """Return the bytes per parameter of training with Adam and fp32 master weights.

    fp32: 16, or 8 + 8/d with the distributed optimizer. fp16: 20 (parameters and gradients in fp16;
    master weights, gradients, and two moments in fp32), or 4 + 16/d. bf16 with fp32 gradients: 18,
    or 6 + 12/d (Megatron-LM's README, "distributed optimizer"). ZeRO's stage 2 divides gradients by
    d, too, and stage 3 also the parameters; the layer in use is in memory in full besides.

    Args:
        precision: "fp32", "fp16", or "bf16".
        replicas: d, the ranks that share the sharded state.
        zero_stage: 0 to 3, as for `zero_bytes`.
        offloaded: the fraction of the optimizer state (master weights and moments) that is in host
            memory, and not counted.
    """
    weights, gradients, optimizer, main_gradients = {
        "fp32": (4, 4, 8, 0), "fp16": (2, 2, 12, 4), "bf16": (2, 4, 12, 0)}[precision]
    shards = [replicas if zero_stage >= needed else 1 for needed in (3, 2, 1)]
    optimizer *= 1 - offloaded
    return States(weights / shards[0], gradients / shards[1], optimizer / shards[2],
                  main_gradients / shards[2])


def zero_bytes(stage: int, replicas: int, optimizer: int = 12) -> States:
    """Return the bytes per parameter of ZeRO (Rajbhandari et al. 2020, figure 1).

    Args:
        stage: 0 to 3; shards nothing, then optimizer state, gradients, and parameters in turn.
        replicas: the data-parallel size.
        optimizer: bytes of optimizer state per parameter, K in the paper.
    """
    shards = [replicas if stage >= needed else 1 for needed in (3, 2, 1)]
    return States(2 / shards[0], 2 / shards[1], optimizer / shards[2])


# The pipeline bubble: two measures, never to be confused.


def bubble_fraction(p: int, m: int, v: int = 1) -> float:
    """Return the bubble fraction: idle time over total time, (p-1) / (v m + p-1)."""
    return (p - 1) / (v * m + p - 1)


def bubble_overhead(p: int, m: int, v: int = 1) -> float:
    """Return the bubble overhead: idle time over ideal time, (p-1) / (v m).

    Source: Narayanan et al. 2021, sections 2.2.1 and 2.2.2.
    """
    return (p - 1) / (v * m)

"""Flags of the model, of batches, and of the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.table.bounds import (
    AT_LEAST_1,
    COUNT,
    FRACTION,
    LOSS_SCALE,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    Bound,
)
from minimegatron.arguments.table.flag import PASSES, RESULTS, SCHEDULE, STATE, RelatedFlags, flag

SHAPE = PASSES | STATE
FP16 = RelatedFlags(
    ("fp16",), "{flag} {value} belongs to --fp16, which is not given; nearest: --fp16 {flag} "
    "{value}")
FP16_OR_BF16 = RelatedFlags(
    ("fp16", "bf16"),
    "{flag}: without --fp16 or --bf16, everything is in fp32; nearest: leave it out")
FIXED_SCALE = RelatedFlags(
    ("loss_scale",), "{flag} {value} with --loss-scale {loss_scale}: a fixed scale never changes; "
    "nearest: leave out one of them")

FP8 = RelatedFlags(
    ("fp8_format",), "{flag} belongs to --fp8-format, which is not given; nearest: --fp8-format "
    "hybrid {flag}")


@dataclass(frozen=True)
class Model:
    """The model."""

    num_layers: int = flag(
        None, "transformer layers", affects=SCHEDULE | STATE, required=True, bounds=AT_LEAST_1,
        largest=100_000)
    hidden_size: int = flag(
        None, "width of the residual stream, h", affects=SHAPE, required=True, bounds=AT_LEAST_1)
    num_attention_heads: int = flag(
        None, "attention heads", affects=SHAPE, required=True, bounds=AT_LEAST_1)
    seq_length: int = flag(
        None, "tokens in a sample, s", "--encoder-seq-length", affects=PASSES, required=True,
        bounds=AT_LEAST_1)
    max_position_embeddings: int = flag(
        None, "learned positions, at least --seq-length", affects=SHAPE, required=True,
        bounds=AT_LEAST_1)
    ffn_hidden_size: int | None = flag(
        None, "width of the MLP (default: 4h)", affects=SHAPE, bounds=AT_LEAST_1)
    kv_channels: int | None = flag(
        None, "width of an attention head (default: h / heads)", affects=SHAPE, bounds=AT_LEAST_1)
    make_vocab_size_divisible_by: int = flag(
        128, "pad the vocabulary to a multiple of this times the tensor-parallel size",
        affects=PASSES, bounds=AT_LEAST_1)
    layernorm_epsilon: float = flag(1e-5, "epsilon of LayerNorm", affects=RESULTS, bounds=POSITIVE)
    init_method_std: float = flag(
        0.02, "standard deviation of the initial parameters", affects=RESULTS, bounds=NOT_NEGATIVE)
    attention_dropout: float = flag(
        0.1, "dropout probability of attention", affects=PASSES, bounds=FRACTION)
    hidden_dropout: float = flag(
        0.1, "dropout probability of the residual branches", affects=PASSES, bounds=FRACTION)
    use_flash_attn: bool = flag(
        False, "scaled_dot_product_attention instead of materialized attention", affects=PASSES)


@dataclass(frozen=True)
class ModernBlock:
    """Differences from GPT-2 (arguments/modern_block.py, model/modern_block.py)."""

    group_query_attention: bool = flag(False, "share keys and values among heads", affects=SHAPE)
    num_query_groups: int = flag(
        1, "groups of heads that share a key and a value head", affects=SHAPE, bounds=AT_LEAST_1)
    squared_relu: bool = flag(False, "squared ReLU instead of GELU", affects=SHAPE)
    swiglu: bool = flag(False, "SwiGLU instead of GELU; default width of the MLP: 8h/3, rounded "
                        "down to a multiple of 64", affects=SHAPE)
    untie_embeddings_and_output_weights: bool = flag(
        False, "give the output layer a matrix of its own", affects=SHAPE)
    add_bias_linear: bool = flag(
        True, "no biases in linear layers", affects=SHAPE, off=("--disable-bias-linear",))
    position_embedding_type: str = flag("learned_absolute", "position embeddings",
                                        choices=("learned_absolute", "rope"), affects=SHAPE)
    rotary_base: int = flag(
        10_000, "base of rope's angles", affects=RESULTS | STATE, bounds=AT_LEAST_1)
    rotary_percent: float = flag(
        1.0, "fraction of each head that rope rotates", affects=SHAPE, bounds=POSITIVE)
    normalization: str = flag("LayerNorm", "normalization before attention, MLP, and output layer",
                              choices=("LayerNorm", "RMSNorm"), affects=SHAPE)


@dataclass(frozen=True)
class Fp8Precision:
    """FP8 (arguments/fp8.py, model/fp8.py)."""

    fp8_format: str | None = flag(
        None, "run linear layers in FP8: e4m3, or hybrid, whose gradients are in E5M2",
        choices=("e4m3", "hybrid"), affects=PASSES, needs=FP16_OR_BF16)
    fp8_recipe: str = flag(
        "delayed", "what shares a scale, and which amax sets it", affects=PASSES, needs=FP8,
        choices=("delayed", "tensorwise", "blockwise", "mxfp8"))
    fp8_margin: int = flag(0, "divide delayed scales by 2^margin", affects=RESULTS, needs=FP8,
                           bounds=Bound("must be from -64 to 64", low=-64, high=64))
    fp8_amax_history_len: int = flag(
        1, "steps in the amax history", affects=PASSES, bounds=AT_LEAST_1, largest=10**6, needs=FP8)
    fp8_amax_compute_algo: str = flag(
        "most_recent", "which amax of the history sets the scale", affects=RESULTS, needs=FP8,
        choices=("max", "most_recent"))
    fp8_wgrad: bool = flag(
        True, "16-bit weight gradients", affects=PASSES, needs=FP8, off=("--no-fp8-wgrad",))
    fp8_param_gather: bool = flag(
        False, "all-gather updated weights in FP8", affects=PASSES, needs=FP8)
    first_last_layers_bf16: bool = flag(
        False, "no FP8 in the first and the last layer", affects=PASSES, needs=FP8)
    num_layers_at_start_in_bf16: int = flag(
        1, "how many of the first layers", affects=PASSES, bounds=NOT_NEGATIVE, needs=FP8)
    num_layers_at_end_in_bf16: int = flag(
        1, "how many of the last layers", affects=PASSES, bounds=NOT_NEGATIVE, needs=FP8)


@dataclass(frozen=True)
class Batch:
    """Batches, and when to stop."""

    micro_batch_size: int = flag(
        None, "samples in one forward pass on one rank", "-b", affects=PASSES, required=True,
        bounds=AT_LEAST_1)
    global_batch_size: int | None = flag(
        None, "samples in one optimizer step over all ranks (default: micro-batch x data-parallel "
        "size)", affects=SCHEDULE, bounds=AT_LEAST_1)
    train_iters: int | None = flag(
        None, "optimizer steps to run", affects=RESULTS, bounds=AT_LEAST_1)
    train_samples: int | None = flag(
        None, "samples to train on, instead of --train-iters", affects=RESULTS, bounds=AT_LEAST_1,
        sets=("train_iters",))
    exit_interval: int | None = flag(
        None, "exit when the iteration is a multiple of this", affects=RESULTS, bounds=AT_LEAST_1)
    exit_duration_in_mins: float | None = flag(
        None, "save and exit after this many minutes", affects=RESULTS, bounds=POSITIVE)
    exit_signal_handler: bool = flag(False, "save and exit on SIGTERM", affects=RESULTS)


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning-rate schedule (arguments/learning_rate.py)."""

    lr_decay_iters: int | None = flag(
        None, "steps over which the learning rate decays (default: --train-iters)",
        affects=RESULTS, bounds=AT_LEAST_1, sets=("lr_decay_samples",))
    lr_decay_samples: int | None = flag(
        None, "samples over which the learning rate decays", affects=RESULTS, bounds=AT_LEAST_1)
    lr_warmup_fraction: float | None = flag(
        None, "warm-up as a fraction of the decay", affects=RESULTS, bounds=FRACTION,
        sets=("lr_warmup_samples",))
    lr_warmup_iters: int = flag(
        0, "warm-up steps", affects=RESULTS, bounds=NOT_NEGATIVE, sets=("lr_warmup_samples",))
    lr_warmup_samples: float = flag(
        0, "warm-up samples", type=int, affects=RESULTS, bounds=NOT_NEGATIVE)
    override_lr_scheduler: bool = flag(
        False, "use the command line's learning-rate schedule, not the checkpoint's",
        "--override-opt-param-scheduler", "--override-opt_param-scheduler", affects=RESULTS,
        today={"--override-lr-scheduler": "--override-opt_param-scheduler"})
    use_checkpoint_lr_scheduler: bool = flag(
        False, "use the checkpoint's learning-rate schedule, not the command line's",
        "--use-checkpoint-opt-param-scheduler", "--use-checkpoint-opt_param-scheduler",
        affects=RESULTS,
        today={"--use-checkpoint-lr-scheduler": "--use-checkpoint-opt_param-scheduler"})


@dataclass(frozen=True)
class Optimization:
    """The optimizer, its learning rate, and precision."""

    optimizer: str = flag("adam", "the optimizer", choices=("adam",), affects=RESULTS)
    lr: float | None = flag(
        None, "peak learning rate", affects=RESULTS, required=True, bounds=NOT_NEGATIVE,
        estimate_with=1e-4)
    min_lr: float = flag(
        0.0, "learning rate at the end of the decay", affects=RESULTS, bounds=NOT_NEGATIVE)
    lr_decay_style: str = flag(
        "linear", "shape of the learning-rate decay",
        choices=("constant", "linear", "cosine", "inverse-square-root"), affects=RESULTS)
    weight_decay: float = flag(
        0.01, "decoupled weight decay (biases and LayerNorm are not decayed)", affects=RESULTS,
        bounds=NOT_NEGATIVE)
    clip_grad: float = flag(
        1.0, "clip gradients to this global norm; 0 turns clipping off", affects=PASSES,
        bounds=NOT_NEGATIVE)
    adam_beta1: float = flag(0.9, "Adam's beta1", affects=RESULTS, bounds=FRACTION)
    adam_beta2: float = flag(0.999, "Adam's beta2", affects=RESULTS, bounds=FRACTION)
    adam_eps: float = flag(1e-8, "Adam's epsilon", affects=RESULTS, bounds=NOT_NEGATIVE)
    fp16: bool = flag(False, "train in fp16 with loss scaling", affects=PASSES)
    bf16: bool = flag(False, "train in bf16; gradients are accumulated in fp32", affects=PASSES)
    loss_scale: float | None = flag(
        None, "fixed loss scale for --fp16 (default: dynamic)", affects=PASSES, bounds=LOSS_SCALE,
        needs=FP16)
    initial_loss_scale: float = flag(
        2.0**32, "initial dynamic loss scale", affects=RESULTS, bounds=LOSS_SCALE, needs=FP16,
        excludes=FIXED_SCALE)
    min_loss_scale: float = flag(
        1.0, "smallest dynamic loss scale", affects=RESULTS, bounds=LOSS_SCALE, needs=FP16,
        excludes=FIXED_SCALE)
    loss_scale_window: int = flag(
        1000, "steps without overflow after which the loss scale doubles", affects=RESULTS,
        bounds=COUNT, needs=FP16, excludes=FIXED_SCALE)
    hysteresis: int = flag(
        2, "overflows after which the loss scale halves", affects=RESULTS, bounds=COUNT, needs=FP16,
        excludes=FIXED_SCALE)
    accumulate_allreduce_grads_in_fp32: bool = flag(
        False, "with --fp16: accumulate and all-reduce gradients in fp32, as with --bf16",
        affects=PASSES, needs=FP16_OR_BF16)
    seed: int = flag(
        1234, "random seed of the initial parameters, the data order, and dropout",
        affects=RESULTS, bounds=SEED)

"""The table of flags: every flag of the trainer once, grouped by topic.

A flag is a field of a dataclass, here or in data.py, presets.py, or sharding.py. It is declared
with `flag(...)`: its name, type and default, its help text, its bounds, the flags it needs, and
what it affects. The parser, the checks, the script checks' comparisons, the estimator's cache and
the test for a matching checkpoint are all derived from these declarations. docs/trainer.md says how
to add a flag.

Names and defaults are Megatron-LM's of 2021-12. A field becomes `--field-name`; a field whose
default is True has flags that turn it off.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.data import Data
from minimegatron.arguments.flag import (
    AT_LEAST_1,
    COUNT,
    FRACTION,
    HARDWARE,
    LOSS_SCALE,
    NOT_NEGATIVE,
    NOTHING,
    PASSES,
    POSITIVE,
    RESULTS,
    SCHEDULE,
    SEED,
    STATE,
    UP_TO_A_YEAR,
    Bound,
    RelatedFlags,
    derived,
    flag,
)
from minimegatron.arguments.presets import Known
from minimegatron.arguments.sharding import Offload, Sharding

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
SAVE_INTERVAL = RelatedFlags(
    ("save_interval",), "{flag} {value} needs --save-interval, for example --save-interval 100")
SAVE = RelatedFlags(
    ("save",), "{flag} needs --save, the folder of the checkpoints; nearest: leave it out")
TENSORBOARD_DIR = RelatedFlags(
    ("tensorboard_dir",), "{flag} {value} needs --tensorboard-dir, where the profile is written")
ESTIMATE = RelatedFlags(("estimate",), "{flag} belongs to --estimate, which is not given")


@dataclass(frozen=True)
class Model(Known):
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
    """Differences of the transformer block from GPT-2's."""

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
    qk_layernorm: bool = flag(
        False, "normalize the queries and keys of each head", affects=SHAPE)

    @property
    def replicates_query_groups(self) -> bool:
        """Return whether several tensor-parallel ranks may have copies of one query group."""
        return False


@dataclass(frozen=True)
class Fp8Precision:
    """FP8 GEMMs in the linear layers."""

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
    """The learning-rate schedule."""

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


@dataclass(frozen=True)
class Distributed:
    """Devices and parallelism."""

    device: str = flag(
        "auto", "cpu, cuda, virtual:GPU (`lab devices` lists the GPU models), virtual (the virtual "
        "GPU that the node declares), or auto: cuda if there is a GPU, else the declared virtual "
        "GPU if the job requested GPUs or nccl, else cpu", affects=HARDWARE)
    virtual_network: str | None = flag(
        None, "network between nodes of virtual GPUs, such as infiniband:8x200gbit (default: the "
        "one that the cluster declares, else the usual one for the GPU)", affects=HARDWARE)
    software_stack: str | None = flag(
        None, "software whose efficiency virtual GPUs have, such as transformer-engine (default: "
        "Megatron-LM's of the GPU's time; docs/virtual-gpus.md)", affects=HARDWARE)
    tensor_model_parallel_size: int = flag(
        1, "tensor-parallel size", affects=PASSES | STATE, bounds=AT_LEAST_1)
    sequence_parallel: bool = flag(
        False, "shard the sequence over the tensor-parallel ranks outside the tensor-parallel "
        "regions", affects=PASSES)
    tp_comm_overlap: bool = flag(
        False, "overlap --sequence-parallel's communication with GEMMs", affects=PASSES)
    pipeline_model_parallel_size: int = flag(
        1, "pipeline stages", affects=SCHEDULE | STATE, bounds=AT_LEAST_1)
    schedule: str | None = flag(
        None, "gpipe, 1f1b, interleaved, zb-h1, zb-h2, or a .py or .json file with your own "
        "(default: 1f1b; interleaved with --num-layers-per-virtual-pipeline-stage)",
        affects=SCHEDULE)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "layers per chunk (virtual stage); stages take turns with chunks", affects=SCHEDULE,
        bounds=AT_LEAST_1, sets=("layers_per_chunk",))
    balance: str | None = flag(
        None, "layers of every stage, such as 0-5-7 (default: equal)", affects=SCHEDULE,
        sets=("layers_per_chunk",))
    pipeline_model_parallel_layout: str | None = flag(
        None, "layout of the stages, such as E|(t|)*3,tt|L: embedding, layers, loss",
        affects=SCHEDULE, sets=("layers_per_chunk",))
    scatter_gather_tensors_in_pipeline: bool = flag(
        False, "send 1/t of the activations from each tensor-parallel rank to the next stage, and "
        "all-gather them there (no effect with --sequence-parallel)", affects=PASSES)
    distributed_backend: str | None = flag(
        None, "backend of tensor communication (default: nccl on GPUs, gloo on the CPU)",
        choices=("nccl", "gloo"), affects=RESULTS)
    ddp_bucket_size: int | None = flag(
        None, "gradients per bucket (default: the larger of 40 million and 1 million per "
        "data-parallel rank)", affects=PASSES, bounds=AT_LEAST_1)
    DDP_impl: str = flag(
        "local", "implementation of data parallelism", choices=("local",), affects=RESULTS)
    distributed_timeout_minutes: float = flag(
        10, "timeout of communication", affects=NOTHING, bounds=(POSITIVE, UP_TO_A_YEAR))
    local_rank: int | None = flag(
        None, "set by torch.distributed.launch", "--local-rank", "--local_rank", affects=NOTHING)


@dataclass(frozen=True)
class Recompute:
    """Activation recomputation."""

    recompute_granularity: str | None = flag(
        None, "what the backward pass recomputes: full (layers) or selective (core attention)",
        choices=("full", "selective"), affects=PASSES)
    recompute_method: str | None = flag(
        None, "for full: uniform (all layers, in groups) or block (the first layers of a chunk)",
        choices=("uniform", "block"), affects=PASSES)
    recompute_num_layers: int = flag(
        1, "layers per group (uniform) or per chunk of a stage (block)",
        "--activations-checkpoint-num-layers", affects=PASSES, bounds=AT_LEAST_1,
        today={"--activations-checkpoint-num-layers": "--recompute-num-layers"})
    recompute_activations: bool = flag(
        False, "the same as --recompute-granularity selective", affects=PASSES,
        sets=("recompute_granularity",))
    activations_checkpoint_method: str | None = flag(
        None, "the same as --recompute-granularity full --recompute-method",
        choices=("uniform", "block"), affects=PASSES,
        sets=("recompute_granularity", "recompute_method"),
        today={"--activations-checkpoint-method":
               "--recompute-granularity full --recompute-method"})
    distribute_saved_activations: bool = flag(
        False, "shard the activations that full recomputation saves over the tensor-parallel ranks",
        "--distribute-checkpointed-activations", affects=PASSES,
        today={"--distribute-checkpointed-activations": "--distribute-saved-activations"})


@dataclass(frozen=True)
class Derived:
    """Fields that are not flags: the checks compute them from the flags and the number of ranks."""

    rank: int = derived(0, affects=NOTHING)
    world_size: int = derived(1, affects=HARDWARE)
    data_parallel_size: int = derived(1, affects=PASSES)
    layers_per_chunk: tuple[int, ...] = derived((), affects=SCHEDULE | STATE)


@dataclass(frozen=True)
class Checkpointing:
    """Checkpoints."""

    save: str | None = flag(
        None, "folder to save checkpoints in", affects=NOTHING, needs=SAVE_INTERVAL)
    load: str | None = flag(None, "folder to resume from", affects=RESULTS, path=True)
    load_last_good: bool = flag(
        False, "if the newest checkpoint is corrupted, resume from the last complete one",
        affects=RESULTS)
    save_interval: int | None = flag(
        None, "steps between checkpoints", affects=NOTHING, bounds=AT_LEAST_1)
    async_save: bool = flag(
        False, "train on while the checkpoint is written; needs host memory for a copy of it",
        affects=NOTHING, needs=SAVE)
    no_save_optim: bool = flag(False, "leave the optimizer out of the checkpoint", affects=NOTHING)
    no_load_optim: bool = flag(False, "do not load the optimizer", affects=RESULTS)
    finetune: bool = flag(
        False, "load only the parameters, and start at iteration 0", affects=RESULTS)


@dataclass(frozen=True)
class Logging:
    """Logs and reports."""

    log_interval: int = flag(100, "steps between log lines", affects=NOTHING, bounds=AT_LEAST_1)
    log_format: str = flag(
        "2021", "log lines of Megatron-LM in 2021-12, or of Megatron core today",
        choices=("2021", "core"), affects=NOTHING)
    eval_interval: int = flag(1000, "steps between validations", affects=RESULTS, bounds=AT_LEAST_1)
    eval_iters: int = flag(
        100, "batches per validation; 0 for no validation", affects=RESULTS, bounds=NOT_NEGATIVE)
    log_throughput: bool = flag(
        False, "log FLOP/s per device, MFU, and theoretical memory", affects=NOTHING)
    log_params_norm: bool = flag(False, "log the norm of the parameters", affects=NOTHING)
    log_num_zeros_in_grad: bool = flag(
        False, "log the number of zeros in the gradient", affects=NOTHING)
    metrics: str | None = flag(
        None, "append metrics to this file, one JSON object per line (default: metrics.jsonl in "
        "--tensorboard-dir, or else beside the log of the Slurm job)", affects=NOTHING)
    tensorboard_dir: str | None = flag(None, "folder of the TensorBoard run", affects=NOTHING)
    tensorboard_log_interval: int = flag(
        1, "steps between TensorBoard points", affects=NOTHING, bounds=AT_LEAST_1)
    tensorboard_queue_size: int = flag(
        1000, "TensorBoard points buffered before they are written", affects=NOTHING)
    log_timers_to_tensorboard: bool = flag(False, "timers as TensorBoard scalars", affects=NOTHING)
    log_batch_size_to_tensorboard: bool = flag(
        False, "batch size as a TensorBoard scalar", affects=NOTHING)
    log_validation_ppl_to_tensorboard: bool = flag(
        False, "perplexity as a TensorBoard scalar", affects=NOTHING)
    log_memory_to_tensorboard: bool = flag(False, "memory as TensorBoard scalars", affects=NOTHING)
    log_world_size_to_tensorboard: bool = flag(
        False, "world size as a TensorBoard scalar", affects=NOTHING)
    log_learning_rate_to_tensorboard: bool = flag(
        True, "no learning rate in TensorBoard", affects=NOTHING,
        off=("--no-log-learnig-rate-to-tensorboard", "--no-log-learning-rate-to-tensorboard"))
    log_loss_scale_to_tensorboard: bool = flag(
        True, "no loss scale in TensorBoard", affects=NOTHING,
        off=("--no-log-loss-scale-to-tensorboard",))


@dataclass(frozen=True)
class Profiling:
    """Timers, timelines, and profiles."""

    timing_log_level: int | None = flag(
        None, "timers that run, each of which waits for the device: 0 the iteration's, 1 those "
        "of a step, 2 all (default: those of 2021)", choices=(0, 1, 2), affects=PASSES)
    timing_log_option: str | None = flag(
        None, "how times are printed (default: minmax; without both flags, the line of 2021)",
        choices=("max", "minmax", "all"), affects=PASSES)
    timeline: str | None = flag(
        None, "folder for a timeline of one step on all ranks: a Perfetto trace and a figure",
        affects=NOTHING)
    timeline_iteration: int = flag(
        3, "iteration that --timeline records", affects=NOTHING, bounds=AT_LEAST_1)
    profile_execution: str = flag(
        "", "any non-empty value: profile two steps", affects=NOTHING, needs=TENSORBOARD_DIR)
    profile_ranks: tuple[int, ...] | None = flag(
        None, "ranks to profile (default: all)", type=int, nargs="+", affects=NOTHING)
    profile_name: str = flag(
        "default", "name of the profile: run_NAME, with workers run_NAME_gpuRANK", affects=NOTHING)


@dataclass(frozen=True)
class Config(Derived, Profiling, Logging, Checkpointing, Recompute, Offload, Sharding, Distributed,
             Data, LearningRateSchedule, Optimization, Batch, Fp8Precision, ModernBlock, Model):
    """The whole command line after all checks; the base classes declare its fields."""

    @property
    def num_micro_batches(self) -> int:
        """Return the number of micro-batches per optimizer step on one rank."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property
    def chunks(self) -> int:
        """Return the number of chunks (virtual stages) that every stage holds."""
        return len(self.layers_per_chunk) // self.pipeline_model_parallel_size

    @property
    def precision(self) -> str:
        """Return "fp16", "bf16", or "fp32"."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def params_type(self) -> str:
        """Return the dtype of parameters and activations, by its name in torch."""
        return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[self.precision]


@dataclass(frozen=True)
class Planning:
    """Estimates (no training happens)."""

    estimate: bool = flag(
        False, "do not train: estimate the run's time and memory on --world-size virtual GPUs; "
        "data, vocabulary, and --lr are not needed", affects=RESULTS)
    world_size: int = flag(
        1, "with --estimate: number of GPUs (otherwise, the ranks that torchrun starts)",
        affects=HARDWARE, bounds=AT_LEAST_1, largest=100_000, needs=ESTIMATE)
    gpus_per_node: int = flag(
        8, "with --estimate: GPUs per node", affects=HARDWARE, bounds=AT_LEAST_1, needs=ESTIMATE)
    cluster: str | None = flag(
        None, "with --estimate: nodes in rank order instead of --device, --world-size, and "
        "--gpus-per-node, such as a100:4x2,a10:4x4", affects=HARDWARE, needs=ESTIMATE)
    vocab_size: int = flag(50257, "with --estimate: vocabulary size", affects=PASSES,
                           bounds=AT_LEAST_1, needs=ESTIMATE)
    tokens: float | None = flag(
        None, "with --estimate: tokens to train on (default: those of the iterations)",
        affects=NOTHING, bounds=AT_LEAST_1, needs=ESTIMATE)
    price_per_gpu_hour: float | None = flag(
        None, "with --estimate: dollars (default: a list price, if there is one)", affects=NOTHING,
        bounds=NOT_NEGATIVE, needs=ESTIMATE)
    json: bool = flag(False, "with --estimate: print JSON", affects=NOTHING, needs=ESTIMATE)
    plot: str | None = flag(None, "with --estimate: draw a figure to this .svg or .png file",
                            affects=NOTHING, needs=ESTIMATE)


@dataclass(frozen=True)
class EstimateConfig(Planning, Config):
    """The command line of pretrain_gpt.py: the trainer's flags, and those of --estimate."""

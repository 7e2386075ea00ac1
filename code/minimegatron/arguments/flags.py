"""Every flag of the trainer, as one frozen dataclass.

Names and defaults are Megatron-LM's of 2021-12. A field becomes `--field-name`; a field whose
default is True becomes `--no-field-name`. What one flag cannot know of another is in checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def flag(default: Any = None, help: str = "", *names: str, **options: Any) -> Any:
    """A dataclass field that is also a command-line flag.

    names: further spellings. options: `type`, `choices`, `nargs` and `metavar` of argparse,
    `required`, and `off`, the flag that turns a True default off.
    """
    return field(default=default, metadata={"help": help, "names": names, **options})


@dataclass(frozen=True)
class Model:
    num_layers: int = flag(None, "transformer layers", type=int, required=True)
    hidden_size: int = flag(None, "width h of the residual stream", type=int, required=True)
    num_attention_heads: int = flag(None, "attention heads", type=int, required=True)
    seq_length: int = flag(None, "tokens s of a sample", "--encoder-seq-length", type=int,
                           required=True)
    max_position_embeddings: int = flag(None, "learned positions, at least --seq-length",
                                        type=int, required=True)
    ffn_hidden_size: int | None = flag(None, "width of the MLP (4h)", type=int)
    kv_channels: int | None = flag(None, "width of a head (h / heads)", type=int)
    make_vocab_size_divisible_by: int = flag(
        128, "pad the vocabulary to a multiple of this times the tensor-parallel size", type=int)
    layernorm_epsilon: float = flag(1e-5, "epsilon of the layer norms", type=float)
    init_method_std: float = flag(0.02, "standard deviation of the initial weights", type=float)
    attention_dropout: float = flag(0.1, "dropout of the attention probabilities", type=float)
    hidden_dropout: float = flag(0.1, "dropout of the residual branches", type=float)
    use_flash_attn: bool = flag(
        False, "scaled_dot_product_attention instead of materialised attention")


@dataclass(frozen=True)
class Batch:
    micro_batch_size: int = flag(None, "samples of one forward pass on one rank", "-b", type=int,
                                 required=True)
    global_batch_size: int | None = flag(
        None, "samples of one optimizer step over all ranks (micro-batch x data-parallel size)",
        type=int)
    train_iters: int | None = flag(None, "optimizer steps to run", type=int)
    train_samples: int | None = flag(None, "samples to train on, instead of --train-iters",
                                     type=int)
    exit_interval: int | None = flag(None, "exit when the iteration is a multiple of this",
                                     type=int)
    exit_duration_in_mins: float | None = flag(None, "save and exit after so many minutes",
                                               type=float)
    exit_signal_handler: bool = flag(False, "save and exit on SIGTERM")


@dataclass(frozen=True)
class Optimization:
    optimizer: str = flag("adam", "the optimizer", choices=("adam",))
    lr: float | None = flag(None, "peak learning rate", type=float, required=True)
    min_lr: float = flag(0.0, "learning rate after the decay", type=float)
    lr_decay_style: str = flag("linear", "how the learning rate falls",
                               choices=("constant", "linear", "cosine",
                                        "inverse-square-root"))
    lr_decay_iters: int | None = flag(None, "steps to decay over (--train-iters)", type=int)
    lr_decay_samples: int | None = flag(None, "samples to decay over", type=int)
    lr_warmup_fraction: float | None = flag(None, "warm-up as a share of the decay", type=float)
    lr_warmup_iters: int = flag(0, "warm-up steps", type=int)
    lr_warmup_samples: float = flag(0, "warm-up samples", type=int)
    override_lr_scheduler: bool = flag(
        False, "the command line's schedule wins over the checkpoint's",
        "--override-opt-param-scheduler", "--override-opt_param-scheduler")
    use_checkpoint_lr_scheduler: bool = flag(
        False, "the checkpoint's schedule wins over the command line's",
        "--use-checkpoint-opt-param-scheduler", "--use-checkpoint-opt_param-scheduler")
    weight_decay: float = flag(0.01, "decoupled weight decay (not on biases and norms)",
                               type=float)
    clip_grad: float = flag(1.0, "largest global gradient norm; 0 does not clip", type=float)
    adam_beta1: float = flag(0.9, "Adam's beta1", type=float)
    adam_beta2: float = flag(0.999, "Adam's beta2", type=float)
    adam_eps: float = flag(1e-8, "Adam's epsilon", type=float)
    fp16: bool = flag(False, "train in fp16 with a loss scale")
    bf16: bool = flag(False, "train in bf16; gradients are summed in fp32")
    loss_scale: float | None = flag(None, "a fixed loss scale for --fp16 (one that adapts)",
                                    type=float)
    initial_loss_scale: float = flag(2.0**32, "loss scale to begin with", type=float)
    min_loss_scale: float = flag(1.0, "the loss scale goes no lower", type=float)
    loss_scale_window: int = flag(1000, "good steps after which the loss scale doubles", type=int)
    hysteresis: int = flag(2, "overflow that first halves the loss scale", type=int)
    accumulate_allreduce_grads_in_fp32: bool = flag(
        False, "with --fp16: sum gradients in fp32, as --bf16 does")
    seed: int = flag(1234, "of the initial weights, the data order and dropout", type=int)


@dataclass(frozen=True)
class Data:
    data_path: str | None = flag(None, "prefix of the .bin and .idx files", type=str,
                                 required=True)
    data_impl: str = flag("infer", "format of the data set", choices=("mmap", "infer"))
    data_cache_path: str | None = flag(None, "folder of the index maps (beside the data)",
                                       type=str)
    split: str = flag("969, 30, 1", "shares of training, validation and test", type=str)
    vocab_file: str | None = flag(None, "GPT-2 vocab.json", type=str, required=True)
    merge_file: str | None = flag(None, "GPT-2 merges.txt", type=str, required=True)
    tokenizer_type: str = flag("GPT2BPETokenizer", "the tokenizer", choices=("GPT2BPETokenizer",))
    eod_mask_loss: bool = flag(False, "no loss on end-of-document tokens")
    num_workers: int = flag(2, "no effect: samples come straight from memory-mapped files",
                            type=int)


@dataclass(frozen=True)
class Distributed:
    device: str = flag("auto", "cpu, cuda, virtual:CARD (`lab devices` lists them), virtual (the "
                       "node's declared card), or auto: cuda where there is one, else the declared "
                       "card where the job asked for GPUs or for nccl, else cpu", type=str)
    virtual_network: str | None = flag(
        None, "between nodes of virtual GPUs, such as ethernet:25gbit or infiniband:8x200gbit "
        "(what the cluster declares, else what is usual for the card)", type=str)
    tensor_model_parallel_size: int = flag(1, "tensor-parallel ranks", type=int)
    sequence_parallel: bool = flag(
        False, "tensor-parallel ranks divide the sequence where they would repeat each other")
    pipeline_model_parallel_size: int = flag(1, "pipeline stages", type=int)
    schedule: str | None = flag(
        None, "order of a pipeline's work: gpipe, 1f1b, interleaved, zb-h1, or a .py or .json file "
        "with one of yours (1f1b; interleaved with --num-layers-per-virtual-pipeline-stage)",
        type=str)
    num_layers_per_virtual_pipeline_stage: int | None = flag(
        None, "layers of one chunk: a stage holds several, dealt out in turn", type=int)
    balance: str | None = flag(None, "layers of every stage, such as 0-5-7 (all alike)", type=str)
    pipeline_model_parallel_layout: str | None = flag(
        None, "what every stage holds, such as E|(t|)*3,tt|L: embedding, layers, loss", type=str)
    distributed_backend: str | None = flag(
        None, "of the tensor traffic (nccl on GPUs, gloo on the CPU)", choices=("nccl", "gloo"))
    use_distributed_optimizer: bool = flag(
        False, "main weights and moments divided among the replicas (ZeRO-1)")
    overlap_grad_reduce: bool = flag(False, "sum gradients while others are being computed")
    ddp_bucket_size: int | None = flag(
        None, "gradients of one message (40 million, or 1 million per replica)", type=int)
    DDP_impl: str = flag("local", "whose data parallelism", choices=("local",))
    distributed_timeout_minutes: float = flag(10, "patience with a silent peer", type=float)
    local_rank: int | None = flag(None, "set by torch.distributed.launch", "--local-rank",
                                  "--local_rank", type=int)


@dataclass(frozen=True)
class Recompute:
    recompute_granularity: str | None = flag(
        None, "what the backward pass computes again: full (layers) or selective (core attention)",
        choices=("full", "selective"))
    recompute_method: str | None = flag(
        None, "of full: uniform (all layers, in groups) or block (the first layers of a stage)",
        choices=("uniform", "block"))
    recompute_num_layers: int = flag(
        1, "layers of a group (uniform) or of each stage (block)",
        "--activations-checkpoint-num-layers", type=int)
    recompute_activations: bool = flag(False, "the same as --recompute-granularity selective")
    activations_checkpoint_method: str | None = flag(
        None, "the same as --recompute-granularity full --recompute-method",
        choices=("uniform", "block"))
    distribute_saved_activations: bool = flag(
        False, "tensor-parallel ranks divide what full recomputation keeps",
        "--distribute-checkpointed-activations")


@dataclass(frozen=True)
class Checkpointing:
    save: str | None = flag(None, "folder to save checkpoints in", type=str)
    load: str | None = flag(None, "folder to resume from", type=str)
    load_last_good: bool = flag(
        False, "where the newest checkpoint is damaged, resume from the last one that is whole")
    save_interval: int | None = flag(None, "steps between checkpoints", type=int)
    no_save_optim: bool = flag(False, "leave the optimizer out of the checkpoint")
    no_load_optim: bool = flag(False, "do not load the optimizer")
    finetune: bool = flag(False, "load the weights alone and start at iteration 0")


@dataclass(frozen=True)
class Logging:
    log_interval: int = flag(100, "steps between iteration lines", type=int)
    log_format: str = flag("2021", "iteration lines of 2021-12, or of Megatron core today",
                           choices=("2021", "core"))
    eval_interval: int = flag(1000, "steps between validations", type=int)
    eval_iters: int = flag(100, "batches of a validation; 0 for none", type=int)
    log_throughput: bool = flag(False, "FLOP/s per device, their share of the device's peak, and "
                                "memory on paper")
    timing_log_level: int | None = flag(
        None, "timers that run, each waiting for the device: 0 only the iteration's, 1 those of a "
        "step, 2 all (those of 2021)", type=int, choices=(0, 1, 2))
    timing_log_option: str | None = flag(
        None, "what is printed of the ranks' times (minmax; without both flags the line of 2021)",
        choices=("max", "minmax", "all"))
    log_params_norm: bool = flag(False, "norm of the weights in the iteration line")
    log_num_zeros_in_grad: bool = flag(False, "zeros of the gradient in the iteration line")
    tensorboard_dir: str | None = flag(None, "folder of the TensorBoard run", type=str)
    tensorboard_log_interval: int = flag(1, "steps between TensorBoard points", type=int)
    tensorboard_queue_size: int = flag(1000, "points kept before they are written", type=int)
    log_timers_to_tensorboard: bool = flag(False, "timers as TensorBoard scalars")
    log_batch_size_to_tensorboard: bool = flag(False, "batch size as a TensorBoard scalar")
    log_validation_ppl_to_tensorboard: bool = flag(False, "perplexity as a TensorBoard scalar")
    log_memory_to_tensorboard: bool = flag(False, "memory as TensorBoard scalars")
    log_world_size_to_tensorboard: bool = flag(False, "world size as a TensorBoard scalar")
    log_learning_rate_to_tensorboard: bool = flag(
        True, "no learning rate in TensorBoard", off=("--no-log-learnig-rate-to-tensorboard",
                                                       "--no-log-learning-rate-to-tensorboard"))
    log_loss_scale_to_tensorboard: bool = flag(
        True, "no loss scale in TensorBoard", off=("--no-log-loss-scale-to-tensorboard",))
    timeline: str | None = flag(None, "folder for one step of all ranks as it ran: a trace for "
                                "Perfetto, and a figure", type=str)
    timeline_iteration: int = flag(3, "which iteration --timeline records", type=int)
    profile_execution: str = flag("", "any non-empty value: profile two steps", type=str)
    profile_ranks: tuple[int, ...] | None = flag(None, "ranks to profile (all)", type=int,
                                                 nargs="+")
    profile_name: str = flag("default", "the profile's run is run_NAME, its workers "
                             "run_NAME_gpuRANK", type=str)


@dataclass(frozen=True)
class Planning:
    """With --estimate nothing is trained: see planner.py."""

    estimate: bool = flag(
        False, "do not train: say what the run would cost on --world-size virtual cards. Data, "
        "vocabulary and --lr are not needed then")
    world_size: int = flag(1, "with --estimate: the cards (else as many ranks as torchrun starts)",
                           type=int)
    gpus_per_node: int = flag(8, "with --estimate: cards of a node", type=int)
    vocab_size: int = flag(50257, "with --estimate: entries of the vocabulary", type=int)
    tokens: float | None = flag(None, "with --estimate: tokens to train on (those of the "
                                "iterations)", type=float)
    price_per_gpu_hour: float | None = flag(None, "with --estimate: dollars (a list's, where it "
                                            "has the card)", type=float)
    json: bool = flag(False, "with --estimate: print JSON")
    plot: str | None = flag(None, "with --estimate: file of a figure, .svg or .png", type=str)


@dataclass(frozen=True)
class Derived:
    """Not flags: set by checks.py from the flags and the number of ranks."""

    rank: int = field(default=0, metadata={"derived": True})
    data_parallel_size: int = field(default=1, metadata={"derived": True})
    layers_per_chunk: tuple[int, ...] = field(default=(), metadata={"derived": True})


@dataclass(frozen=True)
class Config(Derived, Planning, Logging, Checkpointing, Recompute, Distributed, Data,
             Optimization, Batch, Model):
    """The whole command line after all checks; see the parts above for the meaning of a field."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one optimizer step on one rank."""
        return self.global_batch_size // (self.micro_batch_size * self.data_parallel_size)

    @property
    def chunks(self) -> int:
        """Chunks (virtual stages) that every stage holds."""
        return len(self.layers_per_chunk) // self.pipeline_model_parallel_size

    @property
    def precision(self) -> str:
        """"fp16", "bf16" or "fp32"."""
        return "fp16" if self.fp16 else "bf16" if self.bf16 else "fp32"

    @property
    def params_type(self) -> str:
        """torch's name of the type of weights and activations."""
        return {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[self.precision]

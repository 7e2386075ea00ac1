"""Flags of data, of checkpoints, and of everything that a run reports."""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.table.bounds import AT_LEAST_1, NOT_NEGATIVE
from minimegatron.arguments.table.flag import NOTHING, PASSES, RESULTS, STATE, RelatedFlags, flag

SAVE_INTERVAL = RelatedFlags(
    ("save_interval",), "{flag} {value} needs --save-interval, for example --save-interval 100")
TENSORBOARD_DIR = RelatedFlags(
    ("tensorboard_dir",), "{flag} {value} needs --tensorboard-dir, where the profile is written")


@dataclass(frozen=True)
class Data:
    """Data."""

    data_path: str | None = flag(
        None, "prefix of the .bin and .idx files", affects=RESULTS, required=True, path=True,
        estimate_with="")
    data_impl: str = flag(
        "infer", "format of the data set", choices=("mmap", "infer"), affects=NOTHING)
    data_cache_path: str | None = flag(
        None, "folder of the index maps (default: beside the data)", affects=NOTHING)
    split: str = flag(
        "969, 30, 1", "proportions of training, validation, and test data", affects=RESULTS)
    vocab_file: str | None = flag(
        None, "GPT-2 vocab.json", affects=RESULTS, required=True, path=True, estimate_with="")
    merge_file: str | None = flag(
        None, "GPT-2 merges.txt", affects=RESULTS, required=True, path=True, estimate_with="")
    tokenizer_type: str = flag(
        "GPT2BPETokenizer", "the tokenizer", choices=("GPT2BPETokenizer",), affects=RESULTS | STATE)
    eod_mask_loss: bool = flag(False, "no loss on end-of-document tokens", affects=RESULTS)
    num_workers: int = flag(
        2, "no effect: samples come straight from memory-mapped files", affects=NOTHING)


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

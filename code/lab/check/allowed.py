"""From a student's parsed command line to one of our own, for what a run would cost.

No text of the student's goes on: numbers, switches and choices are spelled anew from the
trainer's Config, and every other flag is replaced, left out or refused. Every field of Config is
in one of these classes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lab.errors import LabError
from minimegatron.arguments import Config
from minimegatron.arguments.layout import write_layout
from minimegatron.schedules import BUILT_IN

# What time and memory depend on.
PASSED = (
    "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings",
    "ffn_hidden_size", "kv_channels", "make_vocab_size_divisible_by", "attention_dropout",
    "hidden_dropout", "use_flash_attn", "micro_batch_size", "global_batch_size", "clip_grad",
    "fp16", "bf16", "loss_scale", "accumulate_allreduce_grads_in_fp32",
    "tensor_model_parallel_size", "sequence_parallel", "pipeline_model_parallel_size", "schedule",
    "use_distributed_optimizer", "overlap_grad_reduce", "ddp_bucket_size", "recompute_granularity",
    "recompute_method", "recompute_num_layers", "distribute_saved_activations",
    "timing_log_level", "timing_log_option")
# What the check says, and what another flag says in its stead.
REPLACED = (
    "device", "virtual_network", "world_size", "gpus_per_node", "vocab_size",
    "activations_checkpoint_method", "recompute_activations",
    "num_layers_per_virtual_pipeline_stage", "balance", "pipeline_model_parallel_layout")
# What neither depends on: numbers that are computed with, files, reports, ends.
LEFT_OUT = (
    "layernorm_epsilon", "init_method_std", "train_iters", "train_samples", "exit_interval",
    "exit_duration_in_mins", "exit_signal_handler", "optimizer", "lr", "min_lr", "lr_decay_style",
    "lr_decay_iters", "lr_decay_samples", "lr_warmup_fraction", "lr_warmup_iters",
    "lr_warmup_samples", "override_lr_scheduler", "use_checkpoint_lr_scheduler", "weight_decay",
    "adam_beta1", "adam_beta2", "adam_eps", "initial_loss_scale", "min_loss_scale",
    "loss_scale_window", "hysteresis", "seed", "data_path", "data_impl", "data_cache_path", "split",
    "vocab_file", "merge_file", "tokenizer_type", "eod_mask_loss", "num_workers",
    "distributed_backend", "DDP_impl", "distributed_timeout_minutes", "local_rank", "save", "load",
    "load_last_good", "save_interval", "no_save_optim", "no_load_optim", "finetune",
    "log_interval", "log_format", "eval_interval", "eval_iters", "log_throughput",
    "log_params_norm", "log_num_zeros_in_grad", "tensorboard_dir", "tensorboard_log_interval",
    "tensorboard_queue_size", "log_timers_to_tensorboard", "log_batch_size_to_tensorboard",
    "log_validation_ppl_to_tensorboard", "log_memory_to_tensorboard",
    "log_world_size_to_tensorboard", "log_learning_rate_to_tensorboard",
    "log_loss_scale_to_tensorboard", "timeline", "timeline_iteration", "profile_execution",
    "profile_ranks", "profile_name")
# A run that has one of them trains nothing.
REFUSED = ("estimate", "json", "plot", "tokens", "price_per_gpu_hour")

# Larger runs take minutes to estimate: no exercise needs them.
MOST_RANKS = 4096
MOST_LAYERS = 1000
MOST_PASSES = 40_000  # of one iteration: stages x chunks x micro-batches


@dataclass(frozen=True)
class Cluster:
    """Where a run is imagined. device: virtual:CARD. network: between nodes, as
    --virtual-network has it; None: the card's usual one."""

    device: str
    gpus_per_node: int
    network: str | None = None


def flags_for_estimate(config: Config, cluster: Cluster, vocab_size: int) -> list[str]:
    """The trainer's flags that estimate `config` there. Raises LabError for a run that cannot be
    estimated."""
    fields = {field.name: field for field in dataclasses.fields(Config)}
    for name in REFUSED:
        if getattr(config, name) != fields[name].default:
            raise LabError(f"{_spelled(name)}: what the script starts trains nothing; leave it out")
    _require_size(config)
    words = ["--estimate", "--json", "--device", cluster.device,
             "--world-size", str(config.world_size),
             "--gpus-per-node", str(cluster.gpus_per_node), "--vocab-size", str(vocab_size)]
    if cluster.network is not None:
        words += ["--virtual-network", cluster.network]
    for name in PASSED:
        words += _words(fields[name], getattr(config, name))
    if any(getattr(config, name) is not None for name in (
            "num_layers_per_virtual_pipeline_stage", "balance", "pipeline_model_parallel_layout")):
        words += ["--pipeline-model-parallel-layout", write_layout(config.layers_per_chunk)]
    return words


def _words(field: dataclasses.Field, value: object) -> list[str]:
    """A field as flags. Raises LabError for a text that is no choice."""
    if value is None or value is False:
        return []
    if value is True:
        return [_spelled(field.name)]
    choices = BUILT_IN if field.name == "schedule" else field.metadata.get("choices", ())
    if type(value) not in (int, float) and value not in choices:
        raise LabError(f"{_spelled(field.name)} {value}: only {', '.join(map(str, choices))} can "
                       "be estimated here")
    return [_spelled(field.name), repr(value) if type(value) is float else str(value)]


def _spelled(name: str) -> str:
    return "--" + name.replace("_", "-")


def _require_size(config: Config) -> None:
    passes = (config.pipeline_model_parallel_size * config.chunks * config.num_micro_batches)
    for what, number, most in (("ranks", config.world_size, MOST_RANKS),
                               ("layers", config.num_layers, MOST_LAYERS),
                               ("passes in each step (stages x micro-batches)", passes,
                                MOST_PASSES)):
        if number > most:
            raise LabError(f"{number:,} {what}: such a run is not estimated here; at most {most:,}")

"""Check flags against each other, and derive what follows from them.

Messages begin with Megatron-LM's own wording where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from importlib import import_module

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import near_divisors, near_multiples, require
from minimegatron.arguments.table.files import Profiling
from minimegatron.arguments.table.flag import table_of
from minimegatron.arguments.table.parallel import Recompute
from minimegatron.arguments.table.training import Fp8Precision, LearningRateSchedule, ModernBlock
from minimegatron.errors import UserError
from pipeline_schedules import WHOLE_STAGES


def check(config: Config, rank: int, world_size: int) -> Config:
    """Return `config` with everything derived filled in.

    Raises:
        UserError: flags do not fit together; a line for each problem that follows from no other.
    """
    errors = [*check_needs(config)]
    config = replace(config, rank=rank, world_size=world_size)
    if wrong_numbers := [*check_numbers(config)]:
        raise_all([*errors, *wrong_numbers])
    failed = set()
    for step, needs in STEPS.items():
        if failed.intersection(needs):
            failed.add(step)
            continue
        try:
            config = step(config)
        except UserError as error:
            errors.append(str(error))
            failed.add(step)
    raise_all(errors)
    return config


def raise_all(errors: Sequence[str]) -> None:
    """Raise UserError with the errors, a line for each, if there are any."""
    require(not errors, "\n".join(dict.fromkeys(errors)))


def is_given(config: Config, topic: type) -> bool:
    """Return whether a flag of `topic`, a dataclass of the table, differs from its default."""
    return any(getattr(config, each.name) != each.default for each in fields(topic))


def check_needs(config: Config) -> Iterator[str]:
    """Yield errors for flags that are given without others that they need, or against others."""
    table, values = table_of(type(config)), vars(config)

    def given(names: tuple[str, ...]) -> bool:
        return any(values[name] != table[name].default for name in names)

    for name, flag in table.items():
        for others, wanted in ((flag.needs, True), (flag.excludes, False)):
            if others is not None and given((name,)) and given(others.fields) != wanted:
                yield others.message.format(**{
                    **values, "flag": flag.spelling, "value": values[name]})


def check_numbers(config: Config) -> Iterator[str]:
    """Yield an error for a number that is wrong whatever the other flags are."""
    for flag in table_of(type(config)).values():
        value = getattr(config, flag.name)
        if not isinstance(value, int | float):
            continue
        if not (isinstance(value, int) or math.isfinite(value)):
            yield f"{flag.spelling} {value}: must be a finite number"
        elif isinstance(value, int) and abs(value) > flag.largest:
            yield f"{flag.spelling} {str(value)[:50]}: must be at most {flag.largest}"
        else:
            yield from [f"{flag.spelling} {value}: {bound.message.format(flag=flag.spelling)}"
                        for bound in flag.bounds if not bound.accepts(value)][:1]


def derive_grid(config: Config) -> Config:
    world, tp = config.world_size, config.tensor_model_parallel_size
    stages = config.pipeline_model_parallel_size
    require(world % tp == 0,
            f"world size ({world}) is not divisible by tensor model parallel size ({tp}); "
            f"nearest: --tensor-model-parallel-size {near_divisors(tp, world)}")
    require(world % (tp * stages) == 0,
            f"world size ({world}) is not divisible by tensor parallel size ({tp}) times "
            f"pipeline parallel size ({stages}); nearest: --pipeline-model-parallel-size "
            f"{near_divisors(stages, world // tp)}, or {near_multiples(world, tp * stages)} ranks")
    return replace(config, data_parallel_size=world // (tp * stages))


def derive_tensor_parallel(config: Config) -> Config:
    """Refuse sizes that tensor-parallel ranks cannot divide (the vocabulary is padded)."""
    tp = config.tensor_model_parallel_size
    divided = {"--num-attention-heads": config.num_attention_heads,
               "--ffn-hidden-size": config.ffn_hidden_size}
    if (config.sequence_parallel or config.tp_comm_overlap or config.distribute_saved_activations
            or config.scatter_gather_tensors_in_pipeline):
        from minimegatron.arguments.partitioned_activations import derive_partitioned

        config, activations = derive_partitioned(config)
        divided |= activations
    # A size that divides all of these fits, whatever the other flags are.
    common = math.gcd(config.world_size, *divided.values())
    for name, value in divided.items():
        require(value % tp == 0,
                f"{name} {value} is not divisible by --tensor-model-parallel-size {tp}; nearest: "
                f"{near_multiples(value, tp)}, or --tensor-model-parallel-size "
                f"{near_divisors(tp, common)}")
    return config


def derive_model(config: Config) -> Config:
    heads, hidden = config.num_attention_heads, config.hidden_size
    if config.kv_channels is None:
        require(hidden % heads == 0, f"--hidden-size {hidden} is not divisible by "
                f"--num-attention-heads {heads}; nearest: {near_multiples(hidden, heads)}")
    require(config.max_position_embeddings >= config.seq_length,
            f"--max-position-embeddings {config.max_position_embeddings} is less than "
            f"--seq-length {config.seq_length}; nearest: {config.seq_length}")
    require(not config.use_flash_attn or config.attention_dropout == 0,
            f"--use-flash-attn with --attention-dropout {config.attention_dropout}: its kernel "
            "would draw masks that depend on the layout; nearest: --attention-dropout 0")
    return replace(config, ffn_hidden_size=config.ffn_hidden_size or 4 * hidden,
                   kv_channels=config.kv_channels or hidden // heads)


def derive_batch(config: Config) -> Config:
    micro, ranks = config.micro_batch_size, config.data_parallel_size
    config = replace(config, global_batch_size=config.global_batch_size or micro * ranks)
    require(config.global_batch_size % (micro * ranks) == 0,
            f"global batch size ({config.global_batch_size}) is not divisible by micro batch size "
            f"({micro}) times data parallel size ({ranks}); nearest: --global-batch-size "
            + near_multiples(config.global_batch_size, micro * ranks))
    require((config.train_iters is None) != (config.train_samples is None),
            "give one of --train-iters and --train-samples"
            + ("" if config.train_iters is None else
               f", not both ({config.train_iters} and {config.train_samples})"))
    if config.train_samples is not None:
        require(config.train_samples >= config.global_batch_size,
                f"--train-samples {config.train_samples} is less than one step of "
                f"--global-batch-size {config.global_batch_size}; nearest: --train-samples "
                f"{config.global_batch_size}")
        config = replace(config, train_iters=config.train_samples // config.global_batch_size)
    return config


def derive_pipeline(config: Config) -> Config:
    """Fill in the layers of every chunk and the name of the schedule."""
    layers, stages = config.num_layers, config.pipeline_model_parallel_size
    splits = [flag.name for flag in table_of(type(config)).values()
              if "layers_per_chunk" in flag.sets]
    if layers % stages or any(getattr(config, name) is not None for name in splits):
        from minimegatron.arguments.uneven import split_layers

        config = replace(config, layers_per_chunk=split_layers(config))
    else:
        config = replace(config, layers_per_chunk=(layers // stages,) * stages)
    name = config.schedule or ("1f1b" if config.chunks == 1 else "interleaved")
    if name not in WHOLE_STAGES or config.chunks > 1:
        from minimegatron.arguments.uneven import check_schedule

        check_schedule(config, name)
    return replace(config, schedule=name)


def derive_learning_rate(config: Config) -> Config:
    """Fill in decay and warm-up, which the learning-rate schedule counts in samples."""
    require(config.min_lr <= config.lr,
            f"--min-lr {config.min_lr} is greater than --lr {config.lr}; "
            f"nearest: --min-lr {config.lr}")
    samples = config.train_samples or config.global_batch_size * config.train_iters
    if is_given(config, LearningRateSchedule):
        from minimegatron.arguments.learning_rate import derive_schedule

        return derive_schedule(config, samples)
    return replace(config, lr_decay_samples=samples)


def derive_precision(config: Config) -> Config:
    """Fill in what --bf16 and the number of data-parallel ranks imply."""
    require(not (config.fp16 and config.bf16),
            "--fp16 with --bf16: parameters have one dtype; nearest: --bf16 alone")
    require(config.min_loss_scale <= config.initial_loss_scale,
            f"--min-loss-scale {config.min_loss_scale} is greater than --initial-loss-scale "
            f"{config.initial_loss_scale}; nearest: --min-loss-scale {config.initial_loss_scale}")
    size = config.ddp_bucket_size
    if size is None:
        size = max(40_000_000, 1_000_000 * config.data_parallel_size)
    return replace(config, ddp_bucket_size=size, accumulate_allreduce_grads_in_fp32=(
        config.accumulate_allreduce_grads_in_fp32 or config.bf16))


def optional(topic: type, module: str, function: str) -> Callable[[Config], Config]:
    """Return a step that imports its file only if a flag of `topic` is given."""
    def step(config: Config) -> Config:
        if is_given(config, topic):
            found = import_module(f"minimegatron.arguments.{module}")
            return getattr(found, function)(config) or config
        return config

    return step


def check_hardware(config: Config) -> Config:
    if (config.device not in ("auto", "cpu")
            or {config.virtual_network, config.software_stack} != {None}):
        from minimegatron.arguments.virtual_device import check_device

        check_device(config)
    return config


MODERN, RECOMPUTATION, FP8, PROFILE = (
    optional(ModernBlock, "modern_block", "derive_modern_block"),
    optional(Recompute, "recompute", "derive_recompute"),
    optional(Fp8Precision, "fp8", "check_fp8"),
    optional(Profiling, "profiling", "derive_profiling"))
# In this order, each with the steps without whose result it cannot run.
STEPS = {
    derive_grid: (), MODERN: (), derive_model: (MODERN,),
    derive_tensor_parallel: (derive_grid, derive_model), derive_batch: (derive_grid,),
    derive_pipeline: (derive_batch,), RECOMPUTATION: (derive_pipeline,),
    derive_learning_rate: (derive_batch,), derive_precision: (derive_grid,),
    FP8: (derive_tensor_parallel, derive_pipeline, derive_precision),
    check_hardware: (derive_precision,), PROFILE: (derive_batch,),
}

"""Check flags against each other, and derive what follows from them.

Messages begin with Megatron-LM's own wording where it has one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

from minimegatron.arguments.data import check_tokenizer_files
from minimegatron.arguments.flag import spelled, table_of
from minimegatron.arguments.sharding import SHARDING_STRATEGIES
from minimegatron.arguments.stages import check_schedule, split_layers
from minimegatron.arguments.table import Config, Fp8Precision, Recompute
from minimegatron.errors import UserError, near_divisors, near_multiples, require
from pipeline_schedules import WHOLE_STAGES

# What both dimensions of an FP8 GEMM's operands must be divisible by: 16 bytes, or whole blocks.
MULTIPLES = {"delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32}
DELAYED_ONLY = ("fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo")


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


def uses(config: Config, topic: type) -> bool:
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


def derive_partitioned(config: Config) -> tuple[Config, dict[str, int]]:
    """Turn off flags that have no effect in this layout.

    Returns the configuration, and the sizes that the others partition, by flag. Raises UserError
    if --tp-comm-overlap has nothing to overlap.
    """
    tp, sequence = config.tensor_model_parallel_size, config.sequence_parallel
    require(not config.tp_comm_overlap or (sequence and tp > 1),
            "--tp-comm-overlap overlaps the collectives of --sequence-parallel; nearest: "
            f"--sequence-parallel --tensor-model-parallel-size {max(tp, 2)}")
    scatters = (config.scatter_gather_tensors_in_pipeline and tp > 1
                and config.pipeline_model_parallel_size > 1 and not sequence)
    divided = {}
    if sequence or config.distribute_saved_activations:
        divided["--seq-length"] = config.seq_length
    if scatters:
        divided["--hidden-size"] = config.hidden_size
    return replace(config, sequence_parallel=sequence and tp > 1,
                   scatter_gather_tensors_in_pipeline=scatters), divided


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


def derive_modern_block(config: Config) -> Config:
    """Check the modern block's flags, and fill in SwiGLU's default width."""
    check_activation(config)
    check_query_groups(config)
    check_rotation(config)
    if config.swiglu and config.ffn_hidden_size is None:
        # Megatron-LM's: three matrices have about as many parameters as two of width 4h.
        width = config.hidden_size * 8 // 3
        require(width >= 64, f"--swiglu with --hidden-size {config.hidden_size}: the default width "
                f"is a multiple of 64, which would be 0; nearest: --ffn-hidden-size {width}")
        config = replace(config, ffn_hidden_size=width // 64 * 64)
    return config


def check_activation(config: Config) -> None:
    require(not (config.swiglu and config.squared_relu),
            "--squared-relu with --swiglu: an MLP has one activation; nearest: --swiglu alone")


def check_query_groups(config: Config) -> None:
    """Refuse query groups that the heads, or the tensor-parallel ranks, cannot share equally."""
    heads, groups = config.num_attention_heads, config.num_query_groups
    tp = config.tensor_model_parallel_size
    if not config.group_query_attention:
        require(groups == 1, f"--num-query-groups {groups} belongs to --group-query-attention, "
                f"which is not given; nearest: --group-query-attention --num-query-groups {groups}")
        return
    require(heads % tp == 0, f"--num-attention-heads {heads} is not divisible by "
            f"--tensor-model-parallel-size {tp}; nearest: {max(heads // tp, 1) * tp}")
    valid = [count for count in range(tp, heads + 1, tp) if heads % count == 0]
    nearest = min(valid, key=lambda count: abs(count - groups))
    require(heads % groups == 0, f"--num-query-groups {groups}: --num-attention-heads {heads} is "
            f"not divisible by it; nearest: --num-query-groups {nearest}")
    copied = config.replicates_query_groups and tp % groups == 0
    require(copied or groups % tp == 0, f"--num-query-groups {groups} is not divisible by "
            f"--tensor-model-parallel-size {tp}; nearest: --num-query-groups {nearest}")


def check_rotation(config: Config) -> None:
    """Refuse a fraction of the channels that does not rotate them in pairs."""
    if config.position_embedding_type != "rope":
        for name, usual in (("rotary_base", Config.rotary_base),
                            ("rotary_percent", Config.rotary_percent)):
            value, flag = getattr(config, name), f"--{name.replace('_', '-')}"
            require(value == usual, f"{flag} {value} belongs to --position-embedding-type rope, "
                    f"which is not given; nearest: --position-embedding-type rope {flag} {value}")
        return
    require(config.rotary_percent <= 1,
            f"--rotary-percent {config.rotary_percent}: must be at most 1; nearest: "
            "--rotary-percent 1.0")
    width = config.kv_channels or config.hidden_size // config.num_attention_heads
    rotated = int(width * config.rotary_percent)
    require(width > 1, "--position-embedding-type rope rotates pairs of channels, but a head has "
            "only one; nearest: --kv-channels 2")
    require(rotated > 0 and rotated % 2 == 0,
            f"--rotary-percent {config.rotary_percent} of the {width} channels of a head is "
            f"{rotated}, which must be an even number; nearest: --rotary-percent "
            f"{max(rotated // 2 * 2, 2) / width}")


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
    config = replace(config, layers_per_chunk=split_layers(config))
    name = config.schedule or ("1f1b" if config.chunks == 1 else "interleaved")
    if name not in WHOLE_STAGES or config.chunks > 1:
        check_schedule(config, name)
    return replace(config, schedule=name)


def derive_learning_rate(config: Config) -> Config:
    """Fill in decay and warm-up, which the learning-rate schedule counts in samples."""
    require(config.min_lr <= config.lr,
            f"--min-lr {config.min_lr} is greater than --lr {config.lr}; "
            f"nearest: --min-lr {config.lr}")
    samples = config.train_samples or config.global_batch_size * config.train_iters
    batch, fraction = config.global_batch_size, config.lr_warmup_fraction
    require(config.lr_decay_iters is None or config.lr_decay_samples is None,
            "give one of --lr-decay-iters and --lr-decay-samples, not both "
            f"({config.lr_decay_iters} and {config.lr_decay_samples})")
    decay = (config.lr_decay_samples
             or (batch * config.lr_decay_iters if config.lr_decay_iters else samples))
    warmup = config.lr_warmup_samples or config.lr_warmup_iters * batch
    given = (fraction is not None, config.lr_warmup_iters > 0, config.lr_warmup_samples > 0)
    require(sum(given) <= 1,
            "can only specify one of lr-warmup-fraction and lr-warmup-iters (and -samples)")
    if fraction is not None:
        warmup = fraction * decay
    require(warmup < decay, f"the warm-up ({warmup:.0f} samples) is not shorter than the decay "
            f"({decay} samples); nearest: --lr-warmup-iters {max(decay // batch - 1, 0)}")
    require(not (config.override_lr_scheduler and config.use_checkpoint_lr_scheduler),
            "give one of --override-lr-scheduler and --use-checkpoint-lr-scheduler, not both")
    return replace(config, lr_decay_samples=decay, lr_warmup_samples=warmup)


def derive_precision(config: Config) -> Config:
    """Fill in what --bf16 and the number of data-parallel ranks imply."""
    require(not (config.fp16 and config.bf16),
            "--fp16 with --bf16: parameters have one dtype; nearest: --bf16 alone")
    require(config.min_loss_scale <= config.initial_loss_scale,
            f"--min-loss-scale {config.min_loss_scale} is greater than --initial-loss-scale "
            f"{config.initial_loss_scale}; nearest: --min-loss-scale {config.initial_loss_scale}")
    size = config.ddp_bucket_size
    if size is None and not config.shards_by_unit:
        size = max(40_000_000, 1_000_000 * config.data_parallel_size)
    return replace(config, ddp_bucket_size=size, accumulate_allreduce_grads_in_fp32=(
        config.accumulate_allreduce_grads_in_fp32 or config.bf16))


def derive_sharding(config: Config) -> Config:
    """Fill in what the sharding strategy implies, and refuse what cannot be combined with it."""
    replicas, instances = config.data_parallel_size, config.num_distributed_optimizer_instances
    strategy, stage = config.data_parallel_sharding_strategy, config.zero_stage
    chosen = f"--data-parallel-sharding-strategy {strategy}"
    require(instances == 1 or stage > 0,
            f"--num-distributed-optimizer-instances {instances}: nothing is sharded; nearest: "
            f"--use-distributed-optimizer --num-distributed-optimizer-instances {instances}")
    require(replicas % instances == 0,
            f"data parallel size ({replicas}) is not divisible by "
            f"--num-distributed-optimizer-instances {instances}; nearest: "
            f"--num-distributed-optimizer-instances {near_divisors(instances, replicas)}")
    require(not config.overlap_param_gather or stage > 0,
            "--overlap-param-gather only supported with distributed optimizer or megatron fsdp; "
            "nearest: --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
    require(not config.overlap_param_gather or config.overlap_grad_reduce,
            "--overlap-grad-reduce should be turned on when using --overlap-param-gather; nearest: "
            "--overlap-grad-reduce --overlap-param-gather")
    require(config.reshard_after_forward or stage == 3,
            "--torch-fsdp2-no-reshard-after-forward: only --data-parallel-sharding-strategy "
            "optim_grads_params gathers parameters in the forward pass; nearest: leave it out")
    require(config.ddp_bucket_size is None or not config.shards_by_unit,
            f"--ddp-bucket-size {config.ddp_bucket_size} with "
            f"{chosen if stage > 1 else '--overlap-param-gather'}: the buckets are the transformer "
            "layers; nearest: leave it out")
    require(stage < 3 or config.fp8_format is None,
            f"{chosen} with --fp8-format {config.fp8_format}: weights are rounded once per step, "
            "and their FP8 copies would stay in memory unsharded; nearest: "
            "--data-parallel-sharding-strategy optim_grads")
    require(not config.fp8_param_gather or not config.shards_by_unit,
            "--fp8-param-gather with "
            f"{chosen if stage > 1 else '--overlap-param-gather'}: FP8 weights are gathered in "
            "buckets of their own; nearest: --use-distributed-optimizer --fp8-param-gather")
    return replace(config, use_distributed_optimizer=stage > 0,
                   data_parallel_sharding_strategy=SHARDING_STRATEGIES[stage])


def derive_recompute(config: Config) -> Config:
    """Fill in granularity and method from the older and shorter flags, and check them."""
    if not uses(config, Recompute):
        return config
    old, method, size = (config.activations_checkpoint_method, config.recompute_method,
                         config.recompute_num_layers)
    granularity = config.recompute_granularity
    require(old is None or (granularity in (None, "full") and method in (None, old)),
            f"--activations-checkpoint-method {old} is --recompute-granularity full "
            f"--recompute-method {old} today: leave the old name out")
    require(not config.recompute_activations or (granularity in (None, "selective") and not old),
            "--recompute-activations is --recompute-granularity selective, so it excludes full")
    if old:
        granularity, method = "full", old
    elif config.recompute_activations:
        granularity = "selective"
    require(granularity != "full" or method is not None,
            "--recompute-granularity full needs --recompute-method; nearest: uniform")
    require(granularity == "full" or method is None,
            f"--recompute-method {method} is for --recompute-granularity full"
            + (", not selective" if granularity else ", which is missing"))
    require(granularity == "full" or size == 1,
            f"--recompute-num-layers {size} is for --recompute-granularity full")
    layers = max(config.layers_per_chunk)
    require(size <= layers, f"--recompute-num-layers {size}: a stage has {layers} layers; "
            f"nearest: {layers}")
    if config.distribute_saved_activations:
        name, tp = "--distribute-saved-activations", config.tensor_model_parallel_size
        require(granularity == "full", f"{name} is for --recompute-granularity full")
        require(tp > 1, f"{name} needs tensor-parallel ranks; nearest: "
                "--tensor-model-parallel-size 2")
        require(not config.sequence_parallel,
                f"{name} with --sequence-parallel: the saved activations are sharded already; "
                "leave it out")
    return replace(config, recompute_granularity=granularity, recompute_method=method)


def check_offloading(config: Config) -> Config:
    """Refuse what Megatron-LM refuses with offloaded activations."""
    count, layers = config.cpu_offloading_num_layers, config.num_layers
    stages, given = config.pipeline_model_parallel_size, f"--cpu-offloading-num-layers {count}"
    require(count < layers, f"{given}: CPU offloading can be done only for layers less than "
            f"{layers}; nearest: {layers - 1}")
    require(not count or stages == 1, f"{given} with --pipeline-model-parallel-size {stages}: "
            "there is no support for pipeline parallelism with CPU offloading; nearest: "
            "--recompute-activations")
    require(not count or config.recompute_granularity is None,
            f"{given} with --recompute-granularity {config.recompute_granularity}: CPU offloading "
            "does not work when activation recomputation is enabled; nearest: leave one out")
    return config


def check_fp8(config: Config) -> Config:
    """Refuse flags that do not fit together, and sizes that FP8 cannot read."""
    if not uses(config, Fp8Precision):
        return config
    table = table_of(type(config))
    for flag in (table[name] for name in DELAYED_ONLY):
        value = getattr(config, flag.name)
        require(config.fp8_recipe == "delayed" or value == flag.default,
                f"{flag.spelling} {value} is for --fp8-recipe delayed, not {config.fp8_recipe}; "
                "nearest: leave it out")
    require(not config.fp8_param_gather or config.use_distributed_optimizer,
            "--fp8-param-gather only supported with distributed optimizer; nearest: "
            "--use-distributed-optimizer --fp8-param-gather")
    require(not config.fp8_param_gather or config.fp8_recipe in ("delayed", "tensorwise"),
            f"--fp8-param-gather with --fp8-recipe {config.fp8_recipe}: shards do not consist of "
            "whole blocks; nearest: --fp8-recipe delayed")
    check_first_last(config)
    check_sizes(config)
    return config


def check_first_last(config: Config) -> None:
    """Refuse numbers of bf16 layers as Megatron-LM does."""
    given = config.first_last_layers_bf16
    require(not given or config.fp8_recipe != "delayed",
            "Delayed scaling does not support first / last layer in BF16; nearest: --fp8-recipe "
            "tensorwise")
    most = config.num_layers // config.pipeline_model_parallel_size
    for name in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"):
        count, spelling = getattr(config, name), spelled(name)
        require(given or count == 1, f"{spelling} {count} belongs to --first-last-layers-bf16, "
                "which is not given; nearest: leave it out")
        require(not given or count <= most, f"{spelling} {count}: must be between 0 and number of "
                f"layers per pipeline stage ({most}); nearest: {most}")


def check_sizes(config: Config) -> None:
    """Refuse sizes of linear layers that the recipe's GEMMs cannot read."""
    tp, heads = config.tensor_model_parallel_size, config.num_attention_heads
    groups = config.num_query_groups if config.group_query_attention else heads
    tokens = config.seq_length * config.micro_batch_size
    of_heads = "--num-attention-heads x --kv-channels / --tensor-model-parallel-size"
    multiple = MULTIPLES[config.fp8_recipe]
    for name, size in (
            ("--seq-length x --micro-batch-size", tokens),
            ("--hidden-size", config.hidden_size),
            (of_heads, heads * config.kv_channels // tp),
            ("the width of queries, keys, and values (--kv-channels x heads / "
             "--tensor-model-parallel-size)", (heads + 2 * groups) * config.kv_channels // tp),
            ("--ffn-hidden-size / --tensor-model-parallel-size", config.ffn_hidden_size // tp)):
        require(size % multiple == 0,
                f"{name} is {size}: --fp8-recipe {config.fp8_recipe} needs a multiple of "
                f"{multiple}; nearest: {near_multiples(size, multiple)}")


def stays_in_bf16(config: Config, number: int) -> bool:
    """Return whether layer `number` of the whole model, counted from 1, is not in FP8."""
    return config.first_last_layers_bf16 and not (
        config.num_layers_at_start_in_bf16 < number
        <= config.num_layers - config.num_layers_at_end_in_bf16)


def derive_profiling(config: Config) -> Config:
    """Fill in the other timing flag if only one is given, and refuse a rank or a step that the run
    does not have."""
    for rank in config.profile_ranks or ():
        require(0 <= rank < config.world_size,
                f"--profile-ranks {rank}: there are ranks 0 to {config.world_size - 1}; nearest: "
                f"--profile-ranks {min(max(rank, 0), config.world_size - 1)}")
    require(config.timeline is None or config.timeline_iteration <= config.train_iters,
            f"--timeline-iteration {config.timeline_iteration}: the run has {config.train_iters} "
            f"iteration(s); nearest: --timeline-iteration {config.train_iters}")
    require(bool(re.fullmatch(r"[\w.+-]+", config.profile_name)),
            f"--profile-name {config.profile_name!r} becomes part of a folder's name: "
            "letters, digits and . _ + - only")
    level, option = config.timing_log_level, config.timing_log_option
    if level is None and option is None:
        return config
    return replace(config, timing_log_level=level or 0, timing_log_option=option or "minmax")


def check_hardware(config: Config) -> Config:
    if (config.device not in ("auto", "cpu")
            or {config.virtual_network, config.software_stack} != {None}):
        from minimegatron.arguments.virtual_device import check_device  # virtualgpu: 50 ms

        check_device(config)
    return config


def check_tokenizer(config: Config) -> Config:
    check_tokenizer_files(config.tokenizer_type, config.vocab_file, config.merge_file,
                          config.tokenizer_model)
    return config


# In this order, each with the steps without whose result it cannot run.
STEPS = {
    derive_grid: (), derive_modern_block: (), derive_model: (derive_modern_block,),
    derive_tensor_parallel: (derive_grid, derive_model), derive_batch: (derive_grid,),
    derive_pipeline: (derive_batch,), derive_recompute: (derive_pipeline,),
    check_offloading: (derive_recompute,),
    derive_learning_rate: (derive_batch,), derive_sharding: (derive_grid,),
    derive_precision: (derive_grid, derive_sharding),
    check_fp8: (derive_tensor_parallel, derive_pipeline, derive_precision),
    check_hardware: (derive_precision,), derive_profiling: (derive_batch,),
    check_tokenizer: (),
}

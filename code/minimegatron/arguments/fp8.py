"""Check the flags of FP8 against the recipe, the model, and the layout."""

from __future__ import annotations

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import near_multiples, require
from minimegatron.arguments.table.flag import spelled, table_of

# What both dimensions of an FP8 GEMM's operands must be divisible by: 16 bytes, or whole blocks.
MULTIPLES = {"delayed": 16, "tensorwise": 16, "blockwise": 128, "mxfp8": 32}
DELAYED_ONLY = ("fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo")


def check_fp8(config: Config) -> None:
    """Raise UserError for flags that do not fit together, and for sizes that FP8 cannot read."""
    table = table_of(type(config))
    for flag in (table[name] for name in DELAYED_ONLY):
        value = getattr(config, flag.name)
        require(config.fp8_recipe == "delayed" or value == flag.default,
                f"{flag.spelling} {value} is for --fp8-recipe delayed, not {config.fp8_recipe}; "
                "nearest: leave it out")
    require(not config.tp_comm_overlap,
            "--tp-comm-overlap with --fp8-format: it multiplies chunks in 16 bits only; nearest: "
            "--sequence-parallel alone")
    require(not config.fp8_param_gather or config.use_distributed_optimizer,
            "--fp8-param-gather only supported with distributed optimizer; nearest: "
            "--use-distributed-optimizer --fp8-param-gather")
    require(not config.fp8_param_gather or config.fp8_recipe in ("delayed", "tensorwise"),
            f"--fp8-param-gather with --fp8-recipe {config.fp8_recipe}: shards do not consist of "
            "whole blocks; nearest: --fp8-recipe delayed")
    check_first_last(config)
    check_sizes(config)


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

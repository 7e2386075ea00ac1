"""Check the flags of the modern block, and derive what follows from them."""

from __future__ import annotations

from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import require


def derive_modern_block(config: Config) -> Config:
    """Check the modern block's flags, and fill in SwiGLU's default width.

    Raises:
        UserError: the flags do not fit together.
    """
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
    require(groups % tp == 0, f"--num-query-groups {groups} is not divisible by "
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

"""--recompute-* and its older names: which activations are recomputed."""

from __future__ import annotations

from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import require


def derive_recompute(config: Config) -> Config:
    """Fill in granularity and method from the older and shorter flags, and check them.

    Raises:
        UserError: the flags contradict each other, or do not fit the layout.
    """
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

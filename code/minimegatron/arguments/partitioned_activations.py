"""Flags that partition activations over tensor-parallel ranks."""

from __future__ import annotations

from dataclasses import replace

from minimegatron.arguments.flags import Config
from minimegatron.arguments.require import require


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

"""The whole command line as one frozen dataclass; table/ declares its fields.

Names and defaults are Megatron-LM's of 2021-12. A field becomes `--field-name`; a field whose
default is True has flags that turn it off. Checks between flags are in checks.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimegatron.arguments.table.files import Checkpointing, Data, Logging, Profiling
from minimegatron.arguments.table.parallel import Derived, Distributed, Recompute
from minimegatron.arguments.table.training import (
    Batch,
    Fp8Precision,
    LearningRateSchedule,
    Model,
    ModernBlock,
    Optimization,
)


@dataclass(frozen=True)
class Config(Derived, Profiling, Logging, Checkpointing, Recompute, Distributed, Data,
             LearningRateSchedule, Optimization, Batch, Fp8Precision, ModernBlock, Model):
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

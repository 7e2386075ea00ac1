"""Dtypes of parameters and gradients in fp32, bf16, and fp16 (Micikevicius et al. 2018)."""

from __future__ import annotations

import torch

from minimegatron.arguments import Config


def params_dtype(config: Config) -> torch.dtype:
    """Return the dtype of the model's parameters and activations."""
    return getattr(torch, config.params_type)


def grads_dtype(config: Config) -> torch.dtype:
    """Return the dtype in which gradients are accumulated and all-reduced."""
    reduced_in_fp16 = config.fp16 and not config.accumulate_allreduce_grads_in_fp32
    return torch.float16 if reduced_in_fp16 else torch.float32

"""Flags of Megatron-LM that this trainer accepts without a field of Config."""

from __future__ import annotations

# Flags of Megatron-LM that ask for what this trainer does anyway, each with the reason.
NO_EFFECT = {
    "--no-masked-softmax-fusion": "there is no fused softmax kernel here",
    "--no-bias-gelu-fusion": "there is no fused bias-GELU kernel here",
    "--no-bias-dropout-fusion": "there is no fused bias-dropout kernel here",
    "--no-gradient-accumulation-fusion": "GEMMs accumulate weight gradients where dtypes allow",
    "--no-async-tensor-model-parallel-allreduce": "these all-reduces are never asynchronous here",
    "--no-query-key-layer-scaling": "attention scores are never divided by the layer number",
    "--attention-softmax-in-fp32": "a softmax is always computed in fp32",
    "--use-cpu-initialization": "parameters are always initialized on the CPU",
    "--no-load-rng": "dropout and data order have no state to load",
    "--no-save-rng": "dropout and data order have no state to save",
    "--mmap-warmup": "the page cache warms up by itself",
}

"""Flags of Megatron-LM that this trainer accepts without a field of Config."""

from __future__ import annotations

# Flags of Megatron-LM that say what this trainer does anyway, with the reason it can say so.
ALREADY_SO = {
    "--no-masked-softmax-fusion": "there is no fused softmax kernel here",
    "--no-bias-gelu-fusion": "there is no fused bias-GELU kernel here",
    "--no-bias-dropout-fusion": "there is no fused bias-dropout kernel here",
    "--no-gradient-accumulation-fusion": "product and sum are one where types allow",
    "--no-async-tensor-model-parallel-allreduce": "all-reduces of activations are waited for",
    "--no-query-key-layer-scaling": "scores are never divided by the layer's number",
    "--attention-softmax-in-fp32": "a softmax is computed in fp32, whatever the type",
    "--use-cpu-initialization": "weights are always drawn on the CPU",
    "--no-load-rng": "dropout and data order have no state to load",
    "--no-save-rng": "dropout and data order have no state to save",
    "--mmap-warmup": "the page cache warms up by itself",
}

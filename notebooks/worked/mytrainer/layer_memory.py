"""Predict the activation memory of a Layer under tensor and sequence parallelism (Korthikanti et al., 2022)."""


def saved_bytes(shape, s, b, region_size, sequence_parallel, recompute_core, width):
    """Return the bytes that one Layer of llama.py saves on a rank for the backward pass of a micro-batch.

    Args:
        shape: that of the model, as for Llama; its dropout is 0.
        s: the sequence length, divisible by region_size.
        b: the number of samples; at least 2 if the core's GEMMs save their operands (no FlashAttention, no
            recomputation).
        region_size: the number of ranks that share the layer; divides the number of heads.
        sequence_parallel: whether each rank has s/t positions outside the region.
        recompute_core: whether the core of attention is recomputed in the backward pass.
        width: bytes per element of activations: 2 or 4.
    """
    tokens = s * b
    outside = tokens // region_size if sequence_parallel else tokens
    query = width * tokens * shape.heads // region_size * shape.head_dim
    key = width * tokens * max(1, shape.kv_heads // region_size) * shape.head_dim
    # The input in fp32, its scale per position, the normalized input, and the norm's output.
    norms = 2 * outside * (4 * shape.hidden_size + 4 + 2 * width * shape.hidden_size)
    rotations = 2 * width * s * shape.head_dim  # cosines and sines, for queries and keys
    if recompute_core:
        core = query + 2 * key
    elif shape.flash:
        core = query + 2 * key + 4 * tokens * shape.heads // region_size
    else:  # keys and values are repeated for each query head; the causal mask has a byte per element
        core = 3 * query + width * tokens * s * shape.heads // region_size + s * s
    out = query  # the core's output, which is the output layer's input
    mlp = 4 * width * tokens * shape.inner_size // region_size
    return norms + rotations + core + out + mlp

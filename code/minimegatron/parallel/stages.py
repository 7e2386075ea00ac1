"""Which layers live where: the model's slices for one rank, and the embedding that two of them tie.

Virtual stage c * stages + s is chunk c of stage s (Narayanan et al. 2021, section 2.2.2). Without
interleaving there is one chunk per stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from torch import nn

from minimegatron.context import Context
from minimegatron.model.gpt import Stage


def layer_ranges(layers_per_chunk: Sequence[int]) -> list[range]:
    """The layers of every virtual stage, in the model's order, counted from 0."""
    ends = list(accumulate(layers_per_chunk, initial=0))
    return [range(*pair) for pair in pairwise(ends)]


def build_chunks(ctx: Context, vocab_size: int) -> list[Stage]:
    """This rank's chunks. The first virtual stage embeds, the last one computes the loss."""
    layers = layer_ranges(ctx.config.layers_per_chunk)
    return [Stage(ctx, vocab_size, layers[at], is_first=at == 0, is_last=at == len(layers) - 1)
            for at in range(ctx.grid.pp.index, len(layers), ctx.grid.pp.size)]


def as_module(chunks: Sequence[Stage]) -> nn.Module:
    """One module with all the chunks' parameters: the chunk itself where there is one."""
    return chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)


class TiedEmbedding:
    """The word embedding that the first stage looks up and the last one multiplies with.

    They are one parameter, held twice: both draw the same values, both use the sum of the two
    gradients, and so they stay equal. Norms count the first stage's alone (is_tied_copy).
    """

    def __init__(self, ctx: Context, chunks: Sequence[Stage]) -> None:
        """Every rank must call it: it makes a channel."""
        stages, at = ctx.grid.pp.size, ctx.grid.pp.index
        self.weight: nn.Parameter | None = None
        if stages == 1:
            return
        self.ends = ctx.pipeline_group(0, stages - 1)
        if self.ends is not None:
            holder = chunks[0] if at == 0 else chunks[-1]
            self.weight = holder.embedding.word_embeddings.weight
            self.weight.is_tied = True  # its gradient is complete only after all_reduce

    def all_reduce(self) -> None:
        """Add up both ends' gradients; between the last backward and the norm."""
        if self.weight is not None:
            self.ends.all_reduce(self.weight.main_grad)

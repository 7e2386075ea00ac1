"""Embedding, output layer, and cross-entropy over a vocabulary that is partitioned over the ranks."""

import torch
import torch.distributed as dist
from mytrainer.tensor_parallel import parameter


class VocabParallelEmbedding(torch.nn.Module):
    """A row for each token; rank i has the rows from V i // t to V (i + 1) // t - 1.

    Its weight is also that of an output layer: Region.columns(x, embedding) returns this rank's logits.

    Attributes:
        weight: a parameter() [this rank's tokens, h].
        first: the token of its first row.
    """

    bias = None

    def __init__(self, vocab_size, hidden, region):
        super().__init__()
        self.region = region
        self.weight = parameter((vocab_size, hidden), region, 0)
        self.first = self.weight.part[0].start

    def forward(self, tokens):
        """Map tokens, int64 [s, b], to [s, b, h], and leave the region."""
        rows, elsewhere = local_rows(tokens, self.first, len(self.weight))
        x = torch.nn.functional.embedding(rows, self.weight).masked_fill(elsewhere[..., None], 0)
        return self.region.leave(x)


def local_rows(tokens, first, count):
    """Return each token's row on this rank, 0 for tokens of other ranks, and which tokens these are."""
    rows = tokens - first
    elsewhere = (rows < 0) | (rows >= count)
    return rows.masked_fill(elsewhere, 0), elsewhere


def cross_entropy(logits, labels, first, region):
    """Return the loss of each token, fp32 [s, b], the same on all ranks.

    Args:
        logits: this rank's, [s, b, this rank's tokens], in any dtype; may be overwritten.
        labels: the next tokens, int64 [s, b].
        first: the token of this rank's first logit.
        region: the ranks.
    """
    return CrossEntropy.apply(logits, labels, first, region)


class CrossEntropy(torch.autograd.Function):
    """log(sum_v exp(z_v)) - z_label: the ranks exchange the largest logit, the sum, and the label's logit."""

    @staticmethod
    def forward(ctx, logits, labels, first, region):
        logits = logits.detach().float()
        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=region.group)
        logits -= largest[..., None]
        rows, elsewhere = local_rows(labels, first, logits.shape[-1])
        target = logits.gather(-1, rows[..., None])[..., 0].masked_fill(elsewhere, 0)
        logits.exp_()
        sums = torch.stack([logits.sum(-1), target])
        dist.all_reduce(sums, group=region.group)
        logits /= sums[0][..., None]
        ctx.save_for_backward(logits, rows, elsewhere)
        return sums[0].log() - sums[1]

    @staticmethod
    def backward(ctx, grad):
        softmax, rows, elsewhere = ctx.saved_tensors
        softmax *= grad[..., None]
        softmax.scatter_add_(-1, rows[..., None], -grad.masked_fill(elsewhere, 0)[..., None])
        return softmax, None, None, None

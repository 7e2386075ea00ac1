"""Random numbers that do not depend on how a model is divided among ranks."""

import hashlib

import torch


def generator(*key):
    """Return a CPU generator whose numbers depend on the key alone: strings and integers."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))


@torch.no_grad()
def initialize(model, seed, std=0.02):
    """Draw every matrix of a model from a normal distribution, and set its vectors (norm weights) to 1.

    The ranks' parts are parts of the same full tensor, whatever the number of ranks.

    Args:
        model: a module whose parameters are from tensor_parallel.parameter().
        seed: an integer.
        std: the standard deviation of the full matrices.
    """
    for name, one in model.named_parameters():
        if len(one.full_shape) == 1:
            one.fill_(1.0)
        else:
            one.copy_(torch.empty(one.full_shape).normal_(0, std, generator=generator(seed, name))[one.part])


class Dropout(torch.nn.Module):
    """Dropout of hidden states, with the same mask in every layout.

    Attributes:
        p: the probability with which an element becomes zero.
        key: what the masks of this micro-batch depend on; begin_micro_batch sets it.
        samples: the numbers of the micro-batch's samples in the whole run.
    """

    def __init__(self, p, region):
        super().__init__()
        self.p, self.region, self.key, self.samples = p, region, (), ()

    def forward(self, x):
        """Zero elements of x with probability p, and scale up the others so that the mean stays the same.

        Args:
            x: [s, b, h], or if region.splits_sequence, [s/t, b, h]: rank i has the i-th of t equal parts of the
                sequence.

        In evaluation mode, and with p = 0, x is returned.
        """
        if self.p == 0 or not self.training:
            return x
        count, first = x.shape[0], 0
        whole = count
        if self.region.splits_sequence:
            whole, first = count * self.region.size, count * self.region.rank
        draws = [torch.rand(whole, x.shape[2], generator=generator(*self.key, sample))[first:first + count]
                 for sample in self.samples]
        return x * (torch.stack(draws, 1) >= self.p).to(x.device) / (1 - self.p)


def begin_micro_batch(model, seed, iteration, samples):
    """Give every Dropout of a model the key and the samples of its next masks.

    Args:
        model: the model.
        seed: the run's seed.
        iteration: the number of the optimizer step.
        samples: for each sample of the micro-batch, its number in the whole run.
    """
    for name, module in model.named_modules():
        if isinstance(module, Dropout):
            module.key, module.samples = (seed, iteration, name), tuple(samples)

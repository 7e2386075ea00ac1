"""A stage whose micro-batches use the same weight version as on all other stages."""

import torch
from torch.func import functional_call


def delay(stages, interval):
    """Return d: in a long stream, the micro-batches of batch j use version j - d.

    Args:
        stages: p.
        interval: micro-batches per update.
    """
    return -(-(stages - 1) // interval)


class SyncedStash:
    """Vertical sync (Narayanan et al., 2019), 2BW, and PipeDream-Flush (Narayanan et al., 2021).

    Attributes:
        module: as in Stage. Its parameters always have the newest values.
        update: returns the new value of a parameter, given its name in the module, its value, and its gradient.
        interval: micro-batches per update.
        delay: batch j uses version j - delay, or version 0.
    """

    def __init__(self, module, update, interval, delay):
        self.module, self.update, self.interval, self.delay = module, update, interval, delay
        self.in_flight, self.done, self.sums = {}, 0, None
        self.versions = {0: {name: one.detach().requires_grad_() for name, one in module.named_parameters()}}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: the number of the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        if x is not None:
            x = x.detach().requires_grad_()
        y = functional_call(self.module, self.version(key), (x, data))
        self.in_flight[key] = x, y
        return y.detach()

    def version(self, key):
        """Return the weights that a micro-batch uses."""
        return self.versions[max(0, key // self.interval - self.delay)]

    def backward(self, key, grad):
        """Run the backward pass, and return the gradient of x (None on the first stage).

        Args:
            key: the number of the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        x, y = self.in_flight.pop(key)
        weights = [*self.version(key).values()]
        grads = torch.autograd.grad(y, weights if x is None else [*weights, x], grad)
        own = grads[:len(weights)]
        self.sums = own if self.sums is None else [a + b for a, b in zip(self.sums, own, strict=True)]
        self.done += 1
        if self.done % self.interval == 0:
            self.finish_batch(self.done // self.interval)
        return None if x is None else grads[-1]

    def finish_batch(self, new):
        """Make a new version, and drop the one that only the last batch needed."""
        if new > self.delay:
            del self.versions[new - 1 - self.delay]
        made = {}
        for (name, parameter), grad in zip(self.module.named_parameters(), self.sums, strict=True):
            parameter.data = self.update(name, parameter.data, grad)
            made[name] = parameter.detach().requires_grad_()
        self.versions[new], self.sums = made, None

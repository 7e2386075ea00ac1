"""A stage of a pipeline without a flush, which updates its weights while micro-batches are in flight."""

import torch
from torch.func import functional_call


class WeightStash:
    """Weight stashing (PipeDream; Narayanan et al., 2019).

    Attributes:
        module: as in Stage. Its parameters always have the newest values.
        update: returns the new value of a parameter, given its name in the module, its value, and its gradient.
    """

    def __init__(self, module, update):
        self.module, self.update = module, update
        self.in_flight = {}
        self.newest = {name: one.detach().requires_grad_() for name, one in module.named_parameters()}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: the number of the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        if x is not None:
            x = x.detach().requires_grad_()
        y = functional_call(self.module, self.newest, (x, data))
        self.in_flight[key] = x, y, self.newest
        return y.detach()

    def backward(self, key, grad):
        """Run the backward pass, update the weights, and return the gradient of x (None on the first stage).

        Args:
            key: the number of the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        x, y, version = self.in_flight.pop(key)
        inputs = [*version.values()] if x is None else [*version.values(), x]
        grads = torch.autograd.grad(y, inputs, grad)
        self.newest = {}
        for (name, parameter), one in zip(self.module.named_parameters(), grads, strict=False):
            parameter.data = self.update(name, parameter.data, one)
            self.newest[name] = parameter.detach().requires_grad_()
        return None if x is None else grads[-1]

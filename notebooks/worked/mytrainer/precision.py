"""Mixed precision: 16-bit parameters, fp32 gradients, and an optimizer over fp32 master weights."""

import torch


class MixedPrecision:
    """Update fp32 master weights of a model's parameters with any optimizer."""

    def __init__(self, parameters, make_optimizer):
        """Create the master weights, and an optimizer for them.

        Args:
            parameters: those of the model, in fp16, bf16, or fp32.
            make_optimizer: returns an optimizer, given a list of master weights, one for each
                parameter and in the same order.
        """
        self.parameters = list(parameters)
        self.masters = []
        for parameter in self.parameters:
            parameter.grad_dtype = torch.float32
            is_master = parameter.dtype == torch.float32
            self.masters.append(parameter if is_master else parameter.detach().float())
        self.optimizer = make_optimizer(self.masters)

    @property
    def param_groups(self):
        """The groups of the wrapped optimizer, in which the training loop sets the learning rate."""
        return self.optimizer.param_groups

    def zero_grad(self):
        """Free all gradients, before a forward pass."""
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None

    def step(self):
        """Update the master weights from the parameters' gradients, and round them to the parameters."""
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = parameter.grad
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.masters, strict=True):
                if parameter is not master:
                    parameter.copy_(master)

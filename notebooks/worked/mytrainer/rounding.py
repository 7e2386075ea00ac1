"""Train in bf16 without master weights: update in fp32, and round at random (Gupta et al. 2015)."""

import torch


class StochasticRounding:
    """Update a model's bf16 parameters with any optimizer, without master weights."""

    def __init__(self, parameters, make_optimizer):
        """Create the wrapped optimizers.

        Args:
            parameters: those of the model, in bf16, all on one device.
            make_optimizer: returns an optimizer, given a list of fp32 tensors with the shapes of parameters. It may
                be called several times.
        """
        self.parameters = list(parameters)
        self.copies, self.optimizers = [], []
        for parameter in self.parameters:
            parameter.grad_dtype = torch.float32
            copy = parameter.detach().float()
            self.copies.append(copy)
            self.optimizers.append(make_optimizer([copy]))
            copy.data = copy.new_empty(0)
        self.generator = torch.Generator(self.parameters[0].device).manual_seed(1234)  # the same on all ranks

    @property
    def param_groups(self):
        """All groups of the wrapped optimizers, in which the training loop sets the learning rate."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self):
        """Free all gradients, before a forward pass."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        """Update the parameters from their gradients, and round the results to bf16 at random."""
        for parameter, copy, optimizer in zip(self.parameters, self.copies, self.optimizers, strict=True):
            if parameter.grad is None:
                continue
            copy.data, copy.grad = parameter.detach().float(), parameter.grad
            optimizer.step()
            bits = copy.view(torch.int32)
            bits += torch.randint(2**16, bits.shape, generator=self.generator, dtype=torch.int32, device=bits.device)
            bits &= -2**16
            with torch.no_grad():
                parameter.copy_(copy)
            copy.data, copy.grad = copy.new_empty(0), None

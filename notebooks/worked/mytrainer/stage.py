"""One stage of a pipeline: its forward and backward passes, and what is in flight between them."""


class Stage:
    """A part of a model, whose input and output come from and go to other ranks.

    Attributes:
        module: called with hidden states and a micro-batch; returns hidden states, or on the last stage the mean loss of
            the micro-batch. The first stage's hidden states are None.
        in_flight: {key of a micro-batch: what its backward pass needs}.
    """

    def __init__(self, module):
        self.module, self.in_flight = module, {}

    def forward(self, key, x, data):
        """Run the forward pass of a micro-batch, and return its output, which has no history.

        Args:
            key: identifies the micro-batch.
            x: received hidden states, or None on the first stage.
            data: the micro-batch.
        """
        if x is not None:
            x = x.detach().requires_grad_()
        y = self.module(x, data)
        self.in_flight[key] = x, y
        return y.detach()

    def backward(self, key, grad):
        """Run the backward pass of a micro-batch, and return the gradient of its x (None on the first stage).

        Args:
            key: identifies the micro-batch.
            grad: the gradient of the output; on the last stage, the weight of the loss.
        """
        x, y = self.in_flight.pop(key)
        y.backward(grad)
        return None if x is None else x.grad

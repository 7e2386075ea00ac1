"""Delayed scaling: a tensor's scale from the amaxes of earlier passes."""


class DelayedScale:
    """The scale of one tensor under delayed scaling.

    Attributes:
        scale: the current factor, a float.
    """

    def __init__(self, largest, length, margin=0):
        """Begin with a scale of 1.

        Args:
            largest: the largest number of the format.
            length: entries of the history.
            margin: the scale is divided by 2^margin.
        """
        self.largest, self.length, self.margin = largest, length, margin
        self.scale, self.current, self.history = 1.0, 0.0, []

    def record(self, x):
        """Record the amax of a tensor."""
        self.current = max(self.current, x.abs().max().item())

    def end_autocast(self):
        """Set the scale of the next autocast block."""
        if self.current > 0:
            self.history = [*self.history, self.current][-self.length:]
            amax = max(self.history)
            if amax < float("inf"):
                self.scale = self.largest / amax / 2**self.margin
        self.current = 0.0

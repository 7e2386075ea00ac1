"""Dynamic loss scaling, with the rules of Megatron-LM."""

from mytrainer.unscale import unscale


class LossScaler:
    """The loss scale, and what it depends on.

    Attributes:
        scale: multiplies the loss of the next step.
    """

    def __init__(self, initial=2.0**32, minimum=1.0, window=1000, hysteresis=2):
        """Start with the scale `initial`; the other arguments are those of the flags above."""
        self.scale = initial
        self.minimum, self.window, self.hysteresis = minimum, window, hysteresis
        self.good_steps, self.tolerated = 0, hysteresis

    def unscale(self, parameters):
        """Divide the gradients by the scale; return whether one overflowed on any rank."""
        return unscale(parameters, self.scale)

    def update(self, overflow):
        """Adapt the scale after a step.

        Args:
            overflow: whether a gradient of this step overflowed, so that it was skipped.
        """
        if overflow:
            self.good_steps = 0
            self.tolerated -= 1
            if self.tolerated <= 0:
                self.scale = max(self.scale / 2, self.minimum)
            return
        self.good_steps += 1
        if self.good_steps == self.window:
            self.scale *= 2
            self.good_steps, self.tolerated = 0, self.hysteresis

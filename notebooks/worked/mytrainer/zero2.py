"""ZeRO stage 2: gradients are reduce-scattered in the backward pass, and freed."""

from functools import partial

from mytrainer.zero import Zero1


class Zero2(Zero1):
    """Zero1 in which no rank holds all gradients at any time."""

    def __init__(self, module, blocks=()):
        super().__init__(module, blocks)
        self.in_flight = None  # a unit, and its reduce-scatter
        self.waiting = {}
        for unit in self.units:
            self.waiting[unit] = set(unit.parameters)
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, unit))

    def finish(self):
        """Wait for the last reduce-scatter."""
        self._wait()
        self.updated = True

    def _ready(self, unit, parameter):
        """Note that a parameter has its gradient; reduce-scatter those of its unit if it is the last one."""
        self.waiting[unit].discard(parameter)
        if not self.waiting[unit]:
            self.waiting[unit] = set(unit.parameters)
            self.reduce(unit)

    def reduce(self, unit):
        self._wait()
        self.in_flight = unit, unit.start_reduce()

    def _wait(self):
        if self.in_flight is not None:
            unit, started = self.in_flight
            unit.finish_reduce(started)
            self.in_flight = None

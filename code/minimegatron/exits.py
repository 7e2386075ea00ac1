"""When to stop before the last iteration: a signal, a duration, an interval."""

from __future__ import annotations

import signal
import time

from minimegatron.arguments import Config
from minimegatron.parallel.grid import any_rank


class Exits:
    """Asks all ranks, so that all stop after the same step."""

    def __init__(self, config: Config, started: float) -> None:
        """started: when the program began, on time.perf_counter's clock."""
        self.config, self.started, self.signalled = config, started, False
        if config.exit_signal_handler:
            signal.signal(signal.SIGTERM, self._note)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see main

    def _note(self, *_: object) -> None:
        self.signalled = True

    def reason(self, iteration: int) -> str | None:
        """Why to stop after this iteration, in upstream's words; None to go on."""
        config = self.config
        if config.exit_signal_handler and any_rank(self.signalled):
            return "after receiving SIGTERM."
        minutes = (time.perf_counter() - self.started) / 60
        if config.exit_duration_in_mins and any_rank(minutes > config.exit_duration_in_mins):
            return f"after {minutes} minutes"
        if config.exit_interval and iteration % config.exit_interval == 0:
            return f"at iteration {iteration}"
        return None

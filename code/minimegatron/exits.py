"""The exit conditions: a signal, a duration, or an iteration, on which all ranks agree.

A job that Slurm will soon end has to save a checkpoint first, and every rank must do so after the
same step. So ranks share what only one of them may have noticed, through the default group.
"""

from __future__ import annotations

import signal
import time

import torch
import torch.distributed as dist

from minimegatron.arguments import Config


class Exits:
    """The exit conditions of --exit-*. The ranks agree, so all of them stop after the same step."""

    def __init__(self, config: Config, started: float) -> None:
        """Install the signal handler of --exit-signal-handler.

        The program began at `started` on time.perf_counter's clock.
        """
        self.config, self.started, self.signalled = config, started, False
        if config.exit_signal_handler:
            signal.signal(signal.SIGTERM, self._record_signal)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # see main

    def _record_signal(self, *_: object) -> None:
        self.signalled = True

    def reason(self, iteration: int) -> str | None:
        """Return the reason to stop after this iteration, in Megatron-LM's words, or None."""
        config = self.config
        if config.exit_signal_handler and any_rank(self.signalled):
            return "after receiving SIGTERM."
        minutes = (time.perf_counter() - self.started) / 60
        if config.exit_duration_in_mins and any_rank(minutes > config.exit_duration_in_mins):
            return f"after {minutes} minutes"
        if config.exit_interval and iteration % config.exit_interval == 0:
            return f"at iteration {iteration}"
        return None


def any_rank(condition: bool) -> bool:
    """Return whether `condition` holds on any rank; collective over the default group."""
    flag = torch.tensor([int(condition)])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag[0])

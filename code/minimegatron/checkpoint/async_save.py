"""--async-save: training goes on while a thread writes the checkpoint.

The step that saves waits only until its state has been copied to host memory. After each step the
ranks ask one another whether all have written their files, and then publish the checkpoint together
as save.py does: the tracker never points to one of which a file is missing. At most one is in
flight. The next save, and the end of the run, wait for it.

Megatron core forks a process instead, so that Python's interpreter lock does not slow the training
process. Here a thread is enough: torch and hashlib release the lock while they copy, write, and
hash, and there is little else to do. It also ends with its process. A fork that outlives a killed
run could still be writing when the resumed run saves again.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from minimegatron.checkpoint.save import begin, finish, save, shard_files, unfinished, write_files
from minimegatron.context import Context, Progress
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.report import log_lines


class AsyncSave:
    """A checkpoint that this rank's thread writes; every rank has one, even if it has no files."""

    def __init__(self, ctx: Context, final: Path, iteration: int, files: dict[Path, dict]) -> None:
        """Start to write.

        Args:
            ctx: for the ranks that must agree.
            final: the iteration's folder.
            iteration: for the tracker.
            files: contents by path inside the folder, on the host, that nobody changes.
        """
        self.ctx, self.final, self.iteration = ctx, final, iteration
        self.error: str | None = "the thread that writes ended early"
        self.sums: dict[str, str] = {}
        # A daemon, because a run that fails does not wait for it.
        self.thread = Thread(target=self._write, args=(files,), name="checkpoint", daemon=True)
        self.thread.start()

    def _write(self, files: dict[Path, dict]) -> None:
        try:
            self.sums = write_files(files, unfinished(self.final))
            self.error = None
        except Exception as error:  # whatever it is, no rank may publish
            self.error = str(error) or type(error).__name__

    @property
    def is_writing(self) -> bool:
        """Return whether this rank's files are still being written."""
        return self.thread.is_alive()

    def finish(self) -> None:
        """Wait until all ranks have written, and publish the checkpoint; every rank must call it.

        Raises UserError on all ranks if one of them could not write.
        """
        self.thread.join()
        finish(self.ctx, self.error, self.sums, self.final, self.iteration)


def start_saving(ctx: Context, model: nn.Module, optimizer: Optimizer,
                 learning_rate: LearningRate, progress: Progress, padded_vocab_size: int
                 ) -> AsyncSave | None:
    """Save a checkpoint, or with --async-save begin to; arguments as in `save`.

    Every rank must call it. Returns the checkpoint in flight, if there is one. Raises UserError.
    """
    if not ctx.device.has_values:
        ctx.print_rank_0(f"no checkpoint is saved at iteration {progress.iteration}: weights on a "
                         f"{ctx.device.label} have no values")
        return None
    function = save_async if ctx.config.async_save else save
    return function(ctx, model, optimizer, learning_rate, progress, padded_vocab_size)


def save_async(ctx: Context, model: nn.Module, optimizer: Optimizer, learning_rate: LearningRate,
               progress: Progress, padded_vocab_size: int) -> AsyncSave:
    """Copy the state to the host and start to write it; arguments as in `save`.

    Every rank must call it, and later `finish` what it returns.
    """
    final = begin(ctx, progress.iteration)
    with shard_files(ctx, model, optimizer, learning_rate, progress, padded_vocab_size) as own:
        files = tree_map_only(torch.Tensor, copy_to_host, own)
    log_lines.print_scheduled(ctx, final.parent, progress.iteration)
    return AsyncSave(ctx, final, progress.iteration, files)


def copy_to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in host memory, which the following steps do not change."""
    return tensor.detach().to("cpu", copy=True)

"""Run torchgpipe 0.0.7 with the stages on CPU cores instead of GPUs. Import this before using it.

It changes three things:
1. Each partition has its own worker thread. torchgpipe starts one per *device*, which is right if
   devices run asynchronously, but stages on `cpu` would share one thread and take turns.
2. Autocast and hooks on saved tensors apply in the workers. In torch, both are thread-local.
3. `balance_by_size` measures on a CPU: it counts the tensors that autograd saves, where torchgpipe
   asks the GPU's allocator.
On a GPU, torchgpipe is unchanged. On a CPU, autograd always runs the backward pass in one thread,
so only the forward passes of stages overlap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from queue import Queue
from threading import Thread
from typing import Any

import torch
import torchgpipe.balance
import torchgpipe.pipeline
from torch import nn
from torchgpipe.balance.profile import detach, layerwise_sandbox
from torchgpipe.microbatch import Batch
from torchgpipe.worker import worker

from lablib import shims
from lablib.saved import SavedTensors

shims.require("torchgpipe", "0.0.7")


@contextlib.contextmanager
def spawn_workers(devices: list[torch.device]) -> Iterator[tuple[list[Queue], list[Queue]]]:
    """Start a worker per partition, and yield their task queues and their result queues."""
    if any(device.type != "cpu" for device in devices):
        with original_workers(devices) as queues:
            yield queues
        return
    tasks, results = [Queue() for _ in devices], [Queue() for _ in devices]
    threads = [Thread(target=run_worker, args=(caller_state(), *arguments), daemon=True)
               for arguments in zip(tasks, results, devices, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield tasks, results
    finally:
        for queue, thread in zip(tasks, threads, strict=True):
            queue.put(None)  # tells the worker to end
            thread.join()


def caller_state() -> dict[str, Any]:
    """Return torch's thread-local state, which a worker must copy."""
    return {"grad": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
            "hooks": torch._C._autograd._top_saved_tensors_default_hooks(True)}


def run_worker(state: dict[str, Any], tasks: Queue, results: Queue, device: torch.device) -> None:
    """Run torchgpipe's own worker loop in the caller's state.

    Args:
        state: the state from caller_state().
        tasks: the queue of the tasks.
        device: the partition's device.
    """
    hooks = state["hooks"]
    with (torch.autocast("cpu", state["dtype"], enabled=state["autocast"]),
          torch.autograd.graph.saved_tensors_hooks(*hooks) if hooks else contextlib.nullcontext()):
        worker(tasks, results, device, state["grad"])


def profile_sizes(module: nn.Sequential, input: Any, chunks: int, param_scale: float,
                  device: torch.device) -> list[int]:
    """Return the bytes of each layer: tensors saved for one micro-batch, plus weights.

    As in torchgpipe, one sample is measured and scaled up.

    Args:
        module: the layers.
        input: the input of the first layer, a tensor or a tuple of tensors.
        chunks: the number of micro-batches in the input.
        param_scale: the factor for the bytes of the weights.
        device: the device on which to measure.
    """
    if device.type != "cpu":
        return original_sizes(module, input, chunks, param_scale, device)
    batch, sizes, weights = Batch(input), [], []
    samples = batch[0].size(0) / chunks
    for at, x in enumerate(batch):  # copies, because a slice would count as the whole tensor
        batch[at] = x[:1].detach().clone().requires_grad_(x.requires_grad)
    for layer in layerwise_sandbox(module, device):
        detach(batch)
        weights += layer.parameters()  # all so far, because a layer may use an earlier one's (skip)
        with SavedTensors(weights) as saved:
            batch = batch.call(layer)
        own = sum(weight.untyped_storage().nbytes() for weight in layer.parameters())
        sizes.append(int(saved.now * samples + own * param_scale))
    return sizes


original_workers = shims.replace(torchgpipe.pipeline, "spawn_workers", spawn_workers)
original_sizes = shims.replace(torchgpipe.balance, "profile_sizes", profile_sizes)

"""torchgpipe 0.0.7 with the stages on CPU cores instead of GPUs. Import this before using it.

What it changes, and why:
1. A worker thread for each partition. torchgpipe starts one for each *device*, which is right if
   devices run asynchronously; stages that share `cpu` would share one thread, and take turns.
2. Autocast and hooks on saved tensors apply in the workers. In torch, both are thread-local.
3. `balance_by_size` measures on a CPU: it counts the tensors that autograd saves, where torchgpipe
   asks the GPU's allocator.
On a GPU, torchgpipe is unchanged. Autograd runs the backward pass, on a CPU always in one thread,
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

from lab.notebook import shims
from lab.notebook.saved import SavedTensors

shims.require("torchgpipe", "0.0.7")


@contextlib.contextmanager
def spawn_workers(devices: list[torch.device]) -> Iterator[tuple[list[Queue], list[Queue]]]:
    """Start a worker for each partition, and yield (their task queues, their result queues)."""
    if any(device.type != "cpu" for device in devices):
        with original_workers(devices) as queues:
            yield queues
        return
    tasks, results = [Queue() for _ in devices], [Queue() for _ in devices]
    threads = [Thread(target=work, args=(caller_state(), *arguments), daemon=True)
               for arguments in zip(tasks, results, devices, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield tasks, results
    finally:
        for queue, thread in zip(tasks, threads, strict=True):
            queue.put(None)  # the worker's signal to end
            thread.join()


def caller_state() -> dict[str, Any]:
    """Return torch's thread-local state, which a worker has to take over."""
    return {"grad": torch.is_grad_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "dtype": torch.get_autocast_dtype("cpu"),
            "hooks": torch._C._autograd._top_saved_tensors_default_hooks(True)}


def work(state: dict[str, Any], tasks: Queue, results: Queue, device: torch.device) -> None:
    """Run torchgpipe's own loop in the caller's state.

    Args:
        state: from caller_state().
        tasks: the queue of the tasks.
        results: the queue of their results.
        device: of the partition.
    """
    hooks = state["hooks"]
    with (torch.autocast("cpu", state["dtype"], enabled=state["autocast"]),
          torch.autograd.graph.saved_tensors_hooks(*hooks) if hooks else contextlib.nullcontext()):
        worker(tasks, results, device, state["grad"])


def profile_sizes(module: nn.Sequential, input: Any, chunks: int, param_scale: float,
                  device: torch.device) -> list[int]:
    """Return the bytes of each layer: of the tensors that it saves for one micro-batch, and of its
    weights. As in torchgpipe, one sample is measured and scaled up.

    Args:
        module: the layers.
        input: of the first layer, a tensor or a tuple of tensors.
        chunks: micro-batches in the input.
        param_scale: by which the bytes of the weights are multiplied.
        device: on which to measure.
    """
    if device.type != "cpu":
        return original_sizes(module, input, chunks, param_scale, device)
    batch, sizes, weights = Batch(input), [], []
    samples = batch[0].size(0) / chunks
    for at, x in enumerate(batch):  # a copy: a slice would count as the whole tensor
        batch[at] = x[:1].detach().clone().requires_grad_(x.requires_grad)
    for layer in layerwise_sandbox(module, device):
        detach(batch)
        weights += layer.parameters()  # all so far: a layer may use an earlier one's (skip)
        with SavedTensors(weights) as saved:
            batch = batch.call(layer)
        own = sum(weight.untyped_storage().nbytes() for weight in layer.parameters())
        sizes.append(int(saved.now * samples + own * param_scale))
    return sizes


original_workers = shims.replace(torchgpipe.pipeline, "spawn_workers", spawn_workers)
original_sizes = shims.replace(torchgpipe.balance, "profile_sizes", profile_sizes)

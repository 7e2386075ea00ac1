"""The training loop."""

import contextlib
import math

import torch
import torch.distributed as dist


def train(model, optimizer, batches, learning_rate, log, args):
    """Train for args.train_iters steps.

    Args:
        model: DataParallel; maps a micro-batch to its mean loss, a tensor of one element.
        optimizer: updates the model's parameters.
        batches: returns this rank's micro-batches of a step, given the samples consumed before.
        learning_rate: returns the rate of a step, given the samples consumed before.
        log: takes the number of a step, the loss of the global batch, and the gradient norm.
        args: has train_iters, global_batch_size, and clip_grad (0: gradients are not clipped).
    """
    consumed = 0
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(consumed)
        optimizer.zero_grad()
        micro_batches, losses = batches(consumed), []
        for number, batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch) / len(micro_batches)
                loss.backward()
            losses.append(loss.detach())
        model.finish()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad or math.inf)
        optimizer.step()
        consumed += args.global_batch_size
        loss = torch.stack(losses).sum()
        dist.all_reduce(loss)
        log(iteration, loss / dist.get_world_size(), norm)

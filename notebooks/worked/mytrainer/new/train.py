"""The training loop, with loss scaling."""

import contextlib
import math

import torch
import torch.distributed as dist


def train(model, optimizer, batches, learning_rate, log, args, scaler=None, clip=None):
    """Train for args.train_iters steps.

    Args:
        model: DataParallel; maps a micro-batch to its mean loss, a tensor of one element.
        optimizer: updates the model's parameters.
        batches: returns this rank's micro-batches of a step, given the samples consumed before.
        learning_rate: returns the rate of a step, given the samples of the steps before that were not skipped.
        log: takes the number of a step, the loss of the global batch, the gradient norm before
            clipping, and whether the step was skipped.
        args: has train_iters, global_batch_size, and clip_grad (0: gradients are not clipped).
        scaler: your LossScaler; None if the loss is not scaled.
        clip: what clips the gradients; None means torch.nn.utils.clip_grad_norm_. (Lab 08 passes another function.)
    """
    consumed = advanced = 0  # samples of all steps, and of those that were not skipped
    for iteration in range(1, args.train_iters + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(advanced)
        optimizer.zero_grad()
        micro_batches, losses = batches(consumed), []
        for number, batch in enumerate(micro_batches, start=1):
            last = number == len(micro_batches)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(batch) / len(micro_batches)
                (loss if scaler is None else loss * scaler.scale).backward()
            losses.append(loss.detach())
        model.finish()
        skipped = scaler is not None and scaler.unscale(model.parameters())
        norm = (clip or torch.nn.utils.clip_grad_norm_)(model.parameters(), args.clip_grad or math.inf)
        if not skipped:
            optimizer.step()
            advanced += args.global_batch_size
        if scaler is not None:
            scaler.update(skipped)
        consumed += args.global_batch_size
        loss = torch.stack(losses).sum()
        dist.all_reduce(loss)
        log(iteration, loss / dist.get_world_size(), norm, skipped)

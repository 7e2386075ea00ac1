"""Distributed data parallelism for ranks with different numbers of samples."""

import contextlib

import torch
import torch.distributed as dist


class DataParallel(torch.nn.Module):
    """Replicate a module on all ranks, and average its gradients over all samples."""

    def __init__(self, module, bucket_mb=25.0, all_reduce=None):
        """Make the replicas equal, and assign the parameters to buckets.

        Args:
            module: the model; every rank passes in its own.
            bucket_mb: the maximum size of a bucket, in MiB (2**20 bytes).
            all_reduce: sums a tensor over the ranks in place; None means dist.all_reduce.
        """
        super().__init__()
        self.module, self.all_reduce = module, all_reduce
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self.synchronizes = True
        self.buckets, size = [], 0  # lists of parameters, in the order of the backward pass
        for parameter in reversed(list(module.parameters())):
            if not parameter.requires_grad:
                continue
            dtypes = {other.dtype for other in self.buckets[-1]} if self.buckets else set()
            if dtypes != {parameter.dtype} or size + parameter.nbytes > bucket_mb * 2**20:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
            parameter.register_post_accumulate_grad_hook(self._ready)
        self._reset()

    def forward(self, *inputs, **keywords):
        return self.module(*inputs, **keywords)

    def begin(self, samples):
        """Weight this rank's gradients of the next step; without a call, all ranks count equally.

        Args:
            samples: the number that this rank's loss is the mean of; 0 without a backward pass.
        """
        total = torch.tensor(float(samples), device=next(self.parameters()).device)
        dist.all_reduce(total)
        self.weight = samples * dist.get_world_size() / total  # 1 if all ranks have equally many

    @contextlib.contextmanager
    def no_sync(self):
        """Accumulate gradients locally within a `with` block."""
        before, self.synchronizes = self.synchronizes, False
        try:
            yield
        finally:
            self.synchronizes = before

    def finish(self):
        """Wait until every gradient is the mean over all samples. Call it after the last backward."""
        while len(self.started) < len(self.buckets):
            self._start()
        for bucket, (flat, work) in zip(self.buckets, self.started, strict=True):
            if work is not None:
                work.wait()
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                if parameter.grad is None:
                    parameter.grad = self._no_gradient(parameter)
                parameter.grad.copy_(part.view_as(parameter))
        self._reset()

    def _no_gradient(self, parameter):
        """Return zeros in the dtype that the gradient has on the other ranks: fp32 even in bf16 training."""
        return torch.zeros_like(parameter, dtype=parameter.grad_dtype)

    def _reset(self):
        self.weight = 1.0
        self.waiting = [set(bucket) for bucket in self.buckets]
        self.started = []  # a flat tensor and its work for each bucket that is under way

    def _ready(self, parameter):
        """Note that a gradient is complete, and start all buckets whose turn it is."""
        if not self.synchronizes:
            return
        for waiting in self.waiting:
            waiting.discard(parameter)
        while len(self.started) < len(self.buckets) and not self.waiting[len(self.started)]:
            self._start()

    def _start(self):
        """Start the all-reduce of the next bucket, weighted by this rank's samples."""
        bucket = self.buckets[len(self.started)]
        flat = torch.cat([(self._no_gradient(parameter) if parameter.grad is None
                           else parameter.grad).flatten() for parameter in bucket])
        flat *= self.weight
        if self.all_reduce is None:
            work = dist.all_reduce(flat, async_op=True)
        else:
            self.all_reduce(flat)
            work = None  # it is complete
        self.started.append((flat, work))

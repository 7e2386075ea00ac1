"""Optimizer state and activations in host memory: the same training and checkpoints, and flags.

Its time and memory are in tests/virtualgpu/test_trainer_offload.py.
"""

import weakref
from functools import partial
from typing import ClassVar
from unittest.mock import patch

import pytest
import torch
from torch import nn

from minimegatron.device.device import CpuDevice
from minimegatron.device.gpus import CudaHostCopies
from minimegatron.device.host_copies import HostCopies
from minimegatron.errors import UserError
from minimegatron.model.activation_offload import ActivationOffload
from minimegatron.model.gpt import Stage
from minimegatron.offload import cut
from minimegatron.optim import Optimizer
from minimegatron.parallel.ddp import BufferRange, DistributedDataParallel, length
from minimegatron.timers import Timers
from warmranks import run_ranks

from . import layout_steps, resume_steps
from .late_copies import FreedEarly, late_copies
from .test_layouts import HYBRID, OVERLAPS, PP2, Z1, Z2, Z3
from .test_sharding import config_of

OFFLOAD = "--optimizer-cpu-offload"
SOME = f"{OFFLOAD} --optimizer-offload-fraction 0.4 --overlap-cpu-optimizer-d2h-h2d"
FP16 = "--fp16 --initial-loss-scale 256"
CASES = ["--bf16", f"{Z1} {FP16} poison", Z3]
MORE = ["", f"{FP16} poison", f"{Z2} --bf16 {OVERLAPS}", f"{Z3} {FP16} {OVERLAPS} poison",
        f"{Z1} {OVERLAPS} {HYBRID} --bf16", f"{PP2} {Z2} --bf16", f"{PP2} --schedule zb-h1 {FP16}",
        f"{Z1} --tensor-model-parallel-size 2 --sequence-parallel --bf16",
        f"{Z1} --clip-grad 0 --bf16", f"{Z3} --accumulate-allreduce-grads-in-fp32 {FP16}"]

ACTIVATIONS = "--cpu-offloading-num-layers"
# Of deeper models, whose first layers are offloaded.
DEEP = [f"--num-layers 3 {flags}" for flags in (
    f"{FP16} --use-flash-attn --attention-dropout 0 poison", f"{Z3} {OVERLAPS} --bf16")]
MORE_DEEP = [f"--num-layers 3 {flags}" for flags in (
    "", "frozen", f"{Z1} --position-embedding-type rope --swiglu --normalization RMSNorm",
    "--tensor-model-parallel-size 2 --sequence-parallel --bf16", f"{Z2} --overlap-grad-reduce",
    f"{Z3} --torch-fsdp2-no-reshard-after-forward", "--schedule zb-h1 --bf16",
    "--tensor-model-parallel-size 2 --sequence-parallel --tp-comm-overlap",
    "--bf16 --fp8-format hybrid", f"{Z1} {OFFLOAD} --bf16",
    "--group-query-attention --num-query-groups 2 --eod-mask-loss")]


def assert_same(offloads, ranks):
    """Compare runs with and without offloading: {flags: the flags that offload}."""
    pairs = [(case, f"{case} {offload}") for case, more in offloads.items() for offload in more]
    runs = list(dict.fromkeys(one for pair in pairs for one in pair))
    results = run_ranks(layout_steps.run, ranks, 3, runs, backend=None, timeout=500)
    for rank in results:
        seen = dict(zip(runs, rank, strict=True))
        for plain, offloaded in pairs:
            assert seen[offloaded] == seen[plain], offloaded


def test_training_is_the_same_to_the_last_bit():
    """In 16 bits and fp32, with sharding, clipping, and a step that overflows; with the streams of
    a CUDA device, too."""
    streams = f"{SOME} streams", f"{ACTIVATIONS} 2 streams"
    assert_same({**dict.fromkeys(CASES, (SOME,)), **dict.fromkeys(DEEP, (f"{ACTIVATIONS} 2",)),
                 CASES[1]: (SOME, streams[0]), CASES[2]: streams[:1], DEEP[0]: streams[1:]}, 2)


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_training_is_the_same_in_other_layouts():
    assert_same({**dict.fromkeys([*CASES, *MORE], (SOME, OFFLOAD, f"{SOME} streams")),
                 **dict.fromkeys([*DEEP, *MORE_DEEP], (f"{ACTIVATIONS} 1", f"{ACTIVATIONS} 2",
                                                       f"{ACTIVATIONS} 2 streams"))}, 4)


class Recorded(HostCopies):
    """Counts the copies; those that come back are wrong if `garbled`."""

    def __init__(self, garbled=False):
        self.garbled, self.downloads, self.uploads = garbled, [], 0

    def download(self, tensor):
        self.downloads.append((weakref.ref(tensor), tensor.nbytes))
        return super().download(tensor)

    def upload(self, tensor):
        self.uploads += 1
        copy = super().upload(tensor)
        return copy._replace(tensor=copy.tensor * 2) if self.garbled else copy

    def on_device(self):
        return sum(size for tensor, size in self.downloads if tensor() is not None)


def gradient(copies, layers=4, offloaded=3, bytes_seen=None):
    """Return the gradient of the input of layers that offload with `copies`."""
    torch.manual_seed(1)
    modules = [nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(layers)]

    def watched(layer, x):
        if bytes_seen is not None:
            bytes_seen.append(copies.on_device())
        return layer(x)

    x = torch.randn(5, 8, requires_grad=True)
    offload = object.__new__(ActivationOffload)
    offload.count, offload.copies = offloaded, copies
    for module in modules:
        module.forward = partial(watched, module.forward)
    offload([partial(module) for module in modules], x).square().sum().backward()
    return x.grad


def test_activations_leave_the_device_and_are_what_the_backward_pass_reads():
    copies, seen = Recorded(), []
    assert torch.equal(gradient(copies, bytes_seen=seen), gradient(copies, offloaded=0))
    # A layer saves its input and the activation, which two operations save; weights stay.
    assert [size for _, size in copies.downloads] == 3 * [5 * 8 * 4, 5 * 32 * 4]
    assert copies.uploads == len(copies.downloads)
    each = 5 * (8 + 32) * 4
    assert seen == [0, each, each, each]  # before each layer: those of the one before it
    assert copies.on_device() == 0
    assert not torch.equal(gradient(Recorded(garbled=True)), gradient(Recorded(), offloaded=0))


def test_activations_on_cuda_streams_are_waited_for_before_they_are_freed_or_read():
    plain = gradient(HostCopies(), offloaded=0)
    with late_copies():
        assert torch.equal(gradient(CudaHostCopies()), plain)


class Unordered(CudaHostCopies):
    """Wrong: a copy does not wait for the kernels that compute what it reads."""

    @staticmethod
    def _copy(stream, target, source):
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()


class Early(CudaHostCopies):
    """Wrong: what arrives in host memory is freed on the device, and read, before it is there."""

    def wait(self, arrives):
        if arrives.stream is self.up:
            super().wait(arrives)


class Unread(CudaHostCopies):
    """Wrong: kernels read memory before the copy from the host has filled it."""

    def wait(self, arrives):
        if arrives.stream is self.down:
            super().wait(arrives)


class Watched(CudaHostCopies):
    """Records how many copies to the host are still due when the host begins to update a piece."""

    due: ClassVar[list[int]] = []

    def host_waits(self, arrives):
        super().host_waits(arrives)
        self.due.append(len(self.down.queue) - self.down.done)


@pytest.mark.parametrize("flags", [OFFLOAD, f"{OFFLOAD} --overlap-cpu-optimizer-d2h-h2d"])
def test_with_overlap_gradients_travel_while_the_host_updates_others(make_context, flags):
    Watched.due.clear()
    with late_copies():
        updated(make_context, flags, Watched)
    steps = [Watched.due[:len(Watched.due) // 2], Watched.due[len(Watched.due) // 2:]]
    for due in steps:
        assert due[-1] == 0 and due == sorted(set(due), reverse=True)
        assert (len(due) > 2) == ("overlap" in flags)


class Hasty(CudaHostCopies):
    """Wrong: the host does not wait for what it reads."""

    def host_waits(self, arrives):
        return


@pytest.mark.parametrize("wrong", [Unordered, Early, Unread])
def test_activations_without_a_wait_are_wrong(wrong):
    plain = gradient(HostCopies(), offloaded=0)
    with late_copies():
        assert goes_wrong(lambda: gradient(wrong()), plain)


def goes_wrong(run, right):
    """Return whether a run frees memory before it is copied, or returns something else."""
    try:
        return not torch.equal(run(), right)
    except FreedEarly:
        return True


def updated(make_context, flags, copies):
    """Return the parameters after two updates."""
    with patch.object(CpuDevice, "host_copies", lambda self: copies()):
        ctx = make_context(flags)
        torch.manual_seed(2)
        optimizer = Optimizer(ctx, DistributedDataParallel(ctx, Stage(ctx, 32, range(1))))
    for _ in range(2):
        optimizer.ddp.grad_buffer.copy_(torch.randn(optimizer.ddp.size))
        optimizer.step(1e-2, Timers(ctx.device.now))
    return optimizer.param_buffer.clone()


@pytest.mark.parametrize("flags", ["", "--bf16"])
def test_the_host_waits_for_gradients_and_kernels_for_weights(make_context, flags):
    plain = updated(make_context, flags, HostCopies)
    with late_copies():
        assert torch.equal(updated(make_context, f"{flags} {SOME}", CudaHostCopies), plain)
        for wrong in (Unordered, Unread, Hasty):
            assert goes_wrong(partial(updated, make_context, f"{flags} {SOME}", wrong), plain)


@pytest.mark.slow
@pytest.mark.parametrize("cases, ranks", [
    ({f"--bf16 {SOME}": ["--bf16"], "--bf16": [f"{Z1} --bf16 {OFFLOAD}"]}, 2),
    pytest.param({f"{Z3} {SOME}": ["", Z2], f"{Z1} {OFFLOAD} --bf16": [f"{Z3} --bf16 {SOME}"]}, 4,
                 marks=pytest.mark.stress)])
def test_a_checkpoint_loads_with_and_without_offloading(cases, ranks, tmp_path):
    results = run_ranks(resume_steps.run, ranks, str(tmp_path), list(cases.items()), timeout=500)
    for rank in results:
        for whole, resumed in rank:
            for one in resumed:
                assert one["saved"] == whole["saved"] != one["after"]
                assert one["loss and norm"] == pytest.approx(whole["loss and norm"], rel=4e-3)


def test_the_two_parts_cover_each_range_once():
    spans = [(0, 5), (5, 12), (14, 20)]
    ranges = [BufferRange(slice(*span), slice(*span), slice(100 + span[0], 100 + span[1]), None,
                          True, False) for span in spans]
    for first in range(21):
        parts = [*cut(ranges, 0, first), *cut(ranges, first, 20)]
        elements = [at for part in parts for at in range(part.shard.start, part.shard.stop)]
        assert elements == [at for span in spans for at in range(*span)]
        for part in parts:
            assert length(part.shard) == length(part.grads) == length(part.params)
            assert part.params.start - part.grads.start == 100


@pytest.mark.parametrize("flags, why", [
    ("--optimizer-offload-fraction 0.5", "--optimizer-offload-fraction belongs to .* nearest: "
     "--optimizer-cpu-offload --optimizer-offload-fraction"),
    (f"{OFFLOAD} --optimizer-offload-fraction 1.5", "must be from 0 to 1"),
    (f"{OFFLOAD} --optimizer-offload-fraction -0.5", "must be from 0 to 1"),
    ("--overlap-cpu-optimizer-d2h-h2d", "belongs to --optimizer-cpu-offload"),
    (f"{OFFLOAD} --exp-avg-dtype bf16", "Adam with fp32 state"),
    (f"{ACTIVATIONS} 4", r"can be done only for layers less than 4; nearest: 3"),
    (f"{ACTIVATIONS} -1", "must not be negative"),
    (f"{ACTIVATIONS} 1 --pipeline-model-parallel-size 2", "no support for pipeline parallelism"),
    (f"{ACTIVATIONS} 1 --recompute-activations", "does not work when activation recomputation")])
def test_wrong_flags_are_refused_by_name(flags, why):
    with pytest.raises(UserError, match=why):
        config_of(flags)


def test_megatron_s_flag_of_precision_is_accepted_along_with_it():
    config = config_of(f"{OFFLOAD} --use-precision-aware-optimizer")
    assert config.offloaded_fraction == 1.0 and config_of("").offloaded_fraction == 0.0

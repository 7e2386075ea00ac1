"""Run training jobs on virtual GPUs, each with a different bottleneck, and record one GPU's events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline_schedules import Drawing

Event = dict[str, str | int | float]


@dataclass(frozen=True)
class ModeledJob:
    """Data-parallel training of a stack of linear layers in bf16.

    Attributes:
        layers: number of linear layers, each with a layer norm and a GELU.
        width: input and output features of each.
        tokens: tokens per GPU and step.
        gpus: GPU model and GPUs per node, such as "h100:8".
        nodes: number of nodes.
        link: network between them; None for the usual one of these GPUs.
        bucketed: whether all gradients are all-reduced at once rather than one by one.
    """

    layers: int
    width: int
    tokens: int
    gpus: str = "h100"
    nodes: int = 1
    link: str | None = None
    bucketed: bool = True

    @property
    def world(self) -> int:
        """Number of GPUs."""
        return self.nodes * int(self.gpus.partition(":")[2] or 1)


JOBS: Mapping[str, ModeledJob] = {
    "A": ModeledJob(layers=48, width=512, tokens=256),
    "B": ModeledJob(layers=8, width=8192, tokens=16384),
    "C": ModeledJob(layers=8, width=256, tokens=262_144),
    "D": ModeledJob(layers=24, width=1024, tokens=8192, gpus="h100:8", nodes=128, bucketed=False),
    "E": ModeledJob(layers=8, width=4096, tokens=8192, gpus="a100:8", nodes=2,
                    link="ethernet:100gbit"),
}


def gpu_of(job: ModeledJob) -> dict[str, float]:
    """Return the data sheet of a job's GPU: dense bf16 TFLOP/s, and GB/s per direction.

    The network's bandwidth is that of all NICs of a node, because the rings of an all-reduce over
    all GPUs use each of them once per direction.
    """
    from virtualgpu.launch.cluster import parse
    from virtualgpu.net import network

    cluster = parse(job.gpus, job.nodes, job.link)
    return {"tflops": cluster.card.tflops["bf16"],
            "memory_gb_per_s": cluster.card.bandwidth / 1e9,
            "network_gb_per_s": network.parse(cluster.link).bandwidth / 1e9}


def timeline(job: ModeledJob) -> list[Event]:
    """Return the first GPU's events in a training step after warm-up, in the order of their start.

    An event has a "name", a "kind" ("kernel" or "communication"), "start" and "end" in
    microseconds, and the "flops" and "bytes" of a kernel, or the "bytes" that a ring sends.
    """
    return [dict(event) for event in _run(job)[0]]


def tokens_per_second(job: ModeledJob) -> float:
    """Return the job's modeled throughput, over all GPUs."""
    return job.world * job.tokens / _run(job)[1]


@cache  # a notebook asks for a job's timeline and for its throughput
def _run(job: ModeledJob) -> tuple[list[Event], float]:
    import virtualgpu

    (rank,) = virtualgpu.run(lambda: _program(job), job.gpus, job.nodes, link=job.link, present=[0],
                             values="none")  # events hold no values
    if rank.error:
        raise RuntimeError(rank.message)
    return rank.value


def _program(job: ModeledJob) -> tuple[list[Event], float]:
    """Run two steps, and return the events and the duration in seconds of the second one."""
    import torch
    import torch.distributed as dist

    from virtualgpu.export.ledger import Ledger
    from virtualgpu.export.trace import TraceRecorder

    gpu = Ledger.current.gpu
    if job.world > 1:
        dist.init_process_group("nccl")
    layers = [layer for _ in range(job.layers) for layer in (
        torch.nn.LayerNorm(job.width), torch.nn.Linear(job.width, job.width), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to("cuda", torch.bfloat16)
    x = torch.empty(job.tokens, job.width, device="cuda", dtype=torch.bfloat16)
    _step(job, model, x)
    torch.cuda.synchronize()
    recorder, begin = TraceRecorder(gpu), gpu.now()
    recorder.start()
    _step(job, model, x)
    torch.cuda.synchronize()
    recorder.stop()
    events = [event for note in recorder.notes for event in _events(note)]
    return sorted(events, key=lambda event: event["start"]), gpu.now() - begin


def _step(job: ModeledJob, model, x) -> None:
    """Run one data-parallel step without an optimizer: forward, backward, and all-reduce.

    Args:
        job: the job, which determines the all-reduces.
        model: the stack of layers.
        x: its input, [tokens, width].
    """
    import torch
    import torch.distributed as dist

    model.zero_grad()
    model(x).float().square().mean().backward()
    if job.world == 1:
        return
    gradients = [parameter.grad for parameter in model.parameters()]
    if job.bucketed:  # nothing is copied back, because no optimizer reads the gradients
        gradients = [torch.cat([gradient.flatten() for gradient in gradients])]
    for gradient in gradients:
        dist.all_reduce(gradient)


def _events(note) -> list[Event]:
    """Return a note of the virtual GPU as an event, if it takes time on the GPU."""
    from virtualgpu.export.trace import CommunicationNote, OperationNote

    if isinstance(note, OperationNote) and note.plan.kernels and note.plan.work:
        work = note.plan.work
        return [_event(note.plan.name, "kernel", note.end - note.plan.seconds, note.end,
                       work.gemm.flops if work.gemm else work.flops, work.bytes)]
    if isinstance(note, CommunicationNote) and note.end is not None:
        ranks = len(note.ranks)
        sent = 2 * (ranks - 1) * note.sent * note.dtype.itemsize // ranks
        return [_event(f"nccl:{note.name}", "communication", note.ready, note.end, 0, sent)]
    return []


def _event(name: str, kind: str, start: float, end: float, flops: int, size: int) -> Event:
    return {"name": name.replace(".", "::", 1), "kind": kind, "start": round(1e6 * start, 3),
            "end": round(1e6 * end, 3), "flops": flops, "bytes": size}


def plot(timelines: Mapping[str, Sequence[Event]], count: int = 24) -> Drawing:
    """Draw the last events of each timeline, as a profiler would.

    Args:
        timelines: the events of each job, by its name.
        count: the number of events to draw.
    """
    from matplotlib.figure import Figure

    from pipeline_schedules import Drawing

    figure = Figure(figsize=(9, 1.1 * len(timelines) + 0.4), layout="constrained")
    rows = figure.subplots(len(timelines), 1, squeeze=False)[:, 0]
    described = []
    for axes, (name, events) in zip(rows, timelines.items(), strict=True):
        shown = list(events)[-count:]
        begin = shown[0]["start"]
        for height, kind, color in ((1, "kernel", "#76b7b2"), (0, "communication", "#f28e2b")):
            bars = [(event["start"] - begin, event["end"] - event["start"])
                    for event in shown if event["kind"] == kind]
            axes.broken_barh(bars, (height - 0.35, 0.7), facecolor=color, edgecolor="#22313f",
                             linewidth=0.6)
        axes.set(yticks=[0, 1], ylim=(-0.5, 1.5), yticklabels=["communication", "kernels"],
                 xlim=(0, None))
        axes.set_title(f"job {name}", fontsize=9, loc="left")
        axes.tick_params(labelsize=8)
        busy = sum(event["end"] - event["start"] for event in shown)
        described.append(f"job {name}: busy {busy / (shown[-1]['end'] - begin):.0%} of "
                         f"{shown[-1]['end'] - begin:,.0f} microseconds")
    rows[-1].set_xlabel("microseconds", fontsize=8)
    return Drawing(figure, f"Timelines of one GPU, {count} events each: " + "; ".join(described)
                   + ".")

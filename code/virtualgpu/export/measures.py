"""One rank's figures as data, which the report prints and `--json` writes.

docs/virtualrun-report.md has the schema; VERSION changes with it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from virtualgpu.core.assumptions import Assumption
from virtualgpu.core.clock import COMPUTE
from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.export import inference
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.steps import REPETITION, ProgramStep, merged, repeated

VERSION = 1
# For each GEMM of a forward pass, the backward pass has two with the same FLOPs: one for the
# input's gradient and one for the weight's.
BACKWARD_PER_FORWARD, SLACK = 2.0, 1.01


def measure(ledger: Ledger, rank: int = 0, error: str | None = None) -> dict:
    """Return the figures of one rank's run; times are in seconds and sizes in bytes.

    Args:
        ledger: ledger of the rank's virtual GPU, stopped.
        rank: the rank in the job.
        error: the error that ended the program, or None.
    """
    gpu, notes = ledger.gpu, []
    forward = None if ledger.steps else inference.measure(ledger.passes)
    steps = [] if forward else steps_of(ledger, crashed(error))
    step = typical(steps)
    return {
        "rank": rank, "error": error,
        "gpu": {"name": gpu.card.name, "product": gpu.card.product,
                "memory_bytes": gpu.card.memory},
        "seconds": gpu.clock.ready(),
        "step": None if step is None else times(steps, step),
        "tokens": None if step is None else tokens(step),
        "flops": None if step is None else flops(gpu, step, notes),
        "communication": None if step is None else communication(gpu, step),
        "inference": forward,
        "memory": memory(ledger, steps),
        "without_cost_rule": without_rule(gpu),
        "assumptions": assumptions(gpu, notes),
    }


def crashed(error: str | None) -> bool:
    """Return whether an error, and not the user's Ctrl-C, ended a program."""
    return error is not None and not error.startswith(KeyboardInterrupt.__name__)


def steps_of(ledger: Ledger, only_ended: bool = False) -> list[ProgramStep]:
    """Return the program's steps by the best evidence available; empty if there is none.

    Args:
        ledger: ledger of the rank's virtual GPU.
        only_ended: whether only steps count that the program itself ended, since what repeats
            before a crash may be the initialization.
    """
    if len(ledger.steps) > 1 or only_ended:
        return merged(ledger.steps)
    gpu = ledger.gpu
    return (repeated(ledger.notes, ledger.works, gpu.clock.ready(), gpu.computing)
            or ledger.steps)


def typical(steps: Sequence[ProgramStep]) -> ProgramStep | None:
    """Return the step with the median time, excluding the first step; None without steps."""
    later = sorted(steps[1:] or steps, key=lambda step: step.seconds)
    return later[(len(later) - 1) // 2] if later else None


def times(steps: Sequence[ProgramStep], step: ProgramStep) -> dict:
    later = [one.seconds for one in steps[1:]]
    return {"found_by": step.kind, "count": len(steps), "seconds": step.seconds,
            "first_seconds": steps[0].seconds,
            "shortest_seconds": min(later) if later else None,
            "longest_seconds": max(later) if later else None,
            "mean_seconds": statistics.fmean(later) if later else None,
            "kernel_seconds": step.kernels}


def tokens(step: ProgramStep) -> dict | None:
    """Return the tokens of a step: the lookups in the most used embedding; None without one.

    Embeddings of the same tokens, such as one per layer, count once.
    """
    count = max(step.work.tokens.values(), default=0)
    return {"per_step": count, "per_second": count / step.seconds} if count else None


def flops(gpu: VirtualGpu, step: ProgramStep, notes: list[str]) -> dict | None:
    """Return the FLOPs, MFU, and HFU of a step; None if there is no GEMM."""
    work = step.work
    model, recomputed = sum(work.model.values()), sum(work.recomputed.values())
    if not model + recomputed:
        return None

    def share(*parts: dict[str, int]) -> float:
        ideal = sum(count / (gpu.card.tflops[dtype] * 1e12) for part in parts
                    for dtype, count in part.items())
        return ideal / step.seconds

    hidden = work.backward > SLACK * BACKWARD_PER_FORWARD * work.forward > 0
    if hidden:
        notes.append(f"the backward pass has {work.backward / work.forward:.2f} times the matmul "
                     "FLOPs of the forward pass, more than 2: it includes recomputation that "
                     "cannot be identified, so MFU is too high")
    if share(work.model) > 1:
        notes.append(f"an MFU of {share(work.model):.0%} is impossible: a rule of the model is "
                     "wrong, and so is this step's time")
    dtypes = {dtype: gpu.card.tflops[dtype] for dtype in (*work.model, *work.recomputed)}
    return {"model_per_step": model, "recomputed_per_step": recomputed,
            "recomputation_identified": not hidden, "peak_tflops": dtypes,
            "mfu": share(work.model), "hfu": share(work.model, work.recomputed)}


def communication(gpu: VirtualGpu, step: ProgramStep) -> dict:
    """Return the exposed communication of a step, in seconds.

    Args:
        gpu: the rank's virtual GPU.
        step: the typical step.
    """
    exposed = dict(step.exposed)
    if step.kind == REPETITION:  # then its own is not known, and the run's average is used
        exposed = {stream: seconds / gpu.clock.ready() * step.seconds
                   for stream, seconds in gpu.clock.exposed.items()}
    return {"exposed_seconds": exposed.get(COMPUTE, 0.0),
            "average_over_run": step.kind == REPETITION,
            "streams": [{"stream": name, "exposed_seconds": seconds}
                        for name, seconds in exposed.items()]}


def memory(ledger: Ledger, steps: Sequence[ProgramStep]) -> dict:
    """Return the peak memory, in bytes, by category.

    Args:
        ledger: ledger of the rank's virtual GPU.
    """
    blocks, gpu = ledger.blocks, ledger.gpu
    parts = blocks.categories_at_peak(ledger.now(steps))
    return {"peak_allocated_bytes": blocks.peak, "reserved_at_peak_bytes": blocks.reserved,
            "peak_reserved_bytes": gpu.memory.run_peak_reserved, "capacity_bytes": gpu.card.memory,
            "at_peak": {name.replace(" ", "_"): size for name, size in parts.items()},
            "nccl_bytes": gpu.memory.non_pytorch - gpu.card.context,
            "context_bytes": gpu.card.context}


def without_rule(gpu: VirtualGpu) -> dict:
    """Return the operations without a cost rule, which were costed as elementwise ones."""
    seconds = {name: gpu.busy[name] for name in gpu.unknown}
    return {"share_of_kernel_time": gpu.unknown_share,
            "operations": [{"name": name, "calls": gpu.unknown[name], "seconds": seconds[name]}
                           for name in sorted(seconds, key=seconds.__getitem__, reverse=True)]}


def assumptions(gpu: VirtualGpu, more: Sequence[str]) -> list[dict]:
    """Return the assumptions of the run."""
    counted = list(gpu.assumptions.counts.items()) + [
        (Assumption(text), 1) for text in more]
    return [{"text": assumption.text, "file": assumption.file, "line": assumption.line,
             "times": count} for assumption, count in counted]

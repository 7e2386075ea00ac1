"""Two schedules, each a list with the actions of every stage: F3 and B3 are the passes of micro-batch 3."""


def one_by_one(stages, micro_batches):
    """Return the schedule in which one micro-batch at a time is in the pipeline."""
    return [[f"{kind}{k}" for k in range(micro_batches) for kind in "FB"] for _ in range(stages)]


def gpipe(stages, micro_batches):
    """Return GPipe's schedule (Huang et al., 2019): all forward passes, then all backward passes."""
    return [[f"F{k}" for k in range(micro_batches)] + [f"B{k}" for k in reversed(range(micro_batches))] for _ in range(stages)]

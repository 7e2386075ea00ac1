"""A learner's own: the backward of one micro-batch before the forward of the next."""


def schedule(stages: int, micro_batches: int) -> list[str]:
    return [" ".join(f"F{k} B{k}" for k in range(micro_batches))] * stages

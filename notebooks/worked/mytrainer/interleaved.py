"""Interleaved 1F1B (Narayanan et al., 2021b): several chunks of the model on each stage."""


def interleaved(stages, micro_batches, chunks):
    """Return the actions of each stage, in their order: a list of lists such as ["F0.1", "B0.1"].

    Args:
        stages: p.
        micro_batches: m, divisible by p.
        chunks: v, the number of chunks per stage.
    """
    order = [(group + k, chunk) for group in range(0, micro_batches, stages) for chunk in range(chunks) for k in range(stages)]
    forwards = [f"F{k}.{chunk}" for k, chunk in order]
    backwards = [f"B{k}.{chunks - 1 - chunk}" for k, chunk in order]
    schedule = []
    for stage in range(stages):
        ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, len(forwards))
        actions = forwards[:ahead]
        for number, backward in enumerate(backwards):
            actions += [*forwards[ahead + number:ahead + number + 1], backward]
        schedule.append(actions)
    return schedule

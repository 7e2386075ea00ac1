"""1F1B with a flush after each step (PipeDream-Flush; Narayanan et al., 2021a)."""


def one_f_one_b(stages, micro_batches):
    """Return the actions of each stage, in their order: a list of lists such as ["F0", "B0"]."""
    schedule = []
    for stage in range(stages):
        ahead = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(ahead)]
        for k in range(micro_batches):
            if ahead + k < micro_batches:
                actions.append(f"F{ahead + k}")
            actions.append(f"B{k}")
        schedule.append(actions)
    return schedule

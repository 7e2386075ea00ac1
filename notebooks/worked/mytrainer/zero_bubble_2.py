"""ZB-H2 (Qi et al., 2023): no idle time between a stage's first and last action, in twice the memory of 1F1B."""


def zb_h2(stages, micro_batches):
    """Return the actions of each stage, for at least 2 stages - 1 micro-batches."""
    schedule = []
    for stage in range(stages):
        warm_up, late = 2 * (stages - stage) - 1, 2 * stage
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            actions.append(f"B{k}")
            if k >= late:
                actions.append(f"W{k - late}")
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
        schedule.append(actions + [f"W{k}" for k in range(micro_batches - late, micro_batches)])
    return schedule

"""ZB-H1 (Qi et al., 2023): weight gradients fill idle time, and each stage takes the memory of 1F1B's first one."""


def zb_h1(stages, micro_batches):
    """Return the actions of each stage: F, B, and W of every micro-batch, as in [["F0", "B0", "W0"]]."""
    schedule = []
    for stage in range(stages):
        warm_up = min(stages - stage - 1, micro_batches)
        actions = [f"F{k}" for k in range(warm_up)]
        for k in range(micro_batches):
            if warm_up + k < micro_batches:
                actions.append(f"F{warm_up + k}")
            actions.append(f"B{k}")
            if k >= stage:
                actions.append(f"W{k - stage}")
        actions += [f"W{k}" for k in range(max(0, micro_batches - stage), micro_batches)]
        schedule.append(actions)
    return schedule

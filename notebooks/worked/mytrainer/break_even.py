"""Find the network on which an interleaved schedule stops paying."""


def step_time(schedule, forward, backward, link):
    """Return the time of a step.

    Args:
        schedule: the actions of each stage, such as "F3" or "B3.1".
        forward: the time of a micro-batch's forward pass through all chunks of a stage, which take equally long.
        backward: the same for a backward pass.
        link: the time from the end of a pass until its result has arrived on another stage. A result that stays on the
            same stage is there at once.
    """
    stages = len(schedule)

    def parse(action):
        number, _, chunk = action[1:].partition(".")
        return action[0], int(number), int(chunk or 0)

    actions = [[parse(action) for action in stage] for stage in schedule]
    chunks = 1 + max(chunk for stage in actions for _, _, chunk in stage)
    times = {"F": forward / chunks, "B": backward / chunks}
    ends, idle, positions = {}, [0.0] * stages, [0] * stages
    remaining = sum(map(len, actions))
    while remaining:
        before = remaining
        for stage in range(stages):
            while positions[stage] < len(actions[stage]):
                kind, number, chunk = actions[stage][positions[stage]]
                part, step = chunk * stages + stage, 1 if kind == "F" else -1
                start, source = idle[stage], part - step
                if 0 <= source < stages * chunks:
                    if (kind, number, source) not in ends:
                        break
                    start = max(start, ends[kind, number, source] + (link if source % stages != stage else 0))
                idle[stage] = ends[kind, number, part] = start + times[kind]
                positions[stage] += 1
                remaining -= 1
        if remaining == before:
            raise ValueError("the stages deadlock")
    return max(idle)


def break_even(plain, chunked, forward, backward):
    """Return the link time at which two schedules take equally long.

    Args:
        plain: a schedule with one chunk on each of at least two stages.
        chunked: a schedule with several chunks, which is faster if `link` is 0.
        forward: as for step_time.
        backward: as for step_time.
    """
    def difference(link):
        return step_time(chunked, forward, backward, link) - step_time(plain, forward, backward, link)

    low, high = 0.0, forward + backward
    while difference(high) < 0:
        low, high = high, 2 * high
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) < 0 else (low, middle)
    return (low + high) / 2

"""The best split of a model into the stages of a pipeline."""


def best_split(times, state, activations, capacity, micro_batches):
    """Return the number of parts of each stage, a list.

    Args:
        times: for each part, the time of both passes of a micro-batch.
        state: for each part, the bytes of its parameters, gradients, and optimizer state.
        activations: for each part, the bytes that it holds for a micro-batch in flight.
        capacity: for each stage, the bytes of its GPU.
        micro_batches: the number of micro-batches in a step.

    Raises ValueError if no split fits.
    """
    parts, stages, infinity = len(times), len(capacity), float("inf")

    def sums(values):
        total = [0]
        for value in values:
            total.append(total[-1] + value)
        return total

    time, held, flying = map(sums, (times, state, activations))
    best, choices = [0] + [infinity] * parts, []  # best[n]: the slowest stage's time for the first n parts
    for stage, room in enumerate(capacity):
        in_flight = min(stages - stage, micro_batches)
        new, choice = [infinity] * (parts + 1), [None] * (parts + 1)
        for end in range(1, parts + 1):
            for begin in range(end):
                if held[end] - held[begin] + in_flight * (flying[end] - flying[begin]) <= room:
                    slowest = max(best[begin], time[end] - time[begin])
                    if slowest < new[end]:
                        new[end], choice[end] = slowest, begin
        best = new
        choices.append(choice)
    if best[parts] == infinity:
        raise ValueError("no split fits")
    split, end = [], parts
    for choice in reversed(choices):
        split.append(end - choice[end])
        end = choice[end]
    return split[::-1]

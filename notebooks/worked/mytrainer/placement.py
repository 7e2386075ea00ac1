"""Place checkpoints for the least time under a memory limit."""


def place(times, saved, inputs, budget, selective=None):
    """Return what to recompute, in order.

    A pair (start, stop) is a group of layers, and a number is a layer of which the core alone is recomputed.

    Args:
        times: forward time of each layer.
        saved: bytes that each layer saves, with its input.
        inputs: bytes of each layer's input.
        budget: bytes that the activations may take.
        selective: for each layer the forward time of its core, and the bytes that it saves if that is recomputed;
            None if no core is recomputed.

    Raises ValueError if no plan fits.
    """
    layers = len(times)
    fronts = [[] for _ in range(layers + 1)]  # of the first n layers: (bytes, time, plan)
    fronts[0] = [(0, 0.0, ())]
    for start in range(layers):
        for held, time, plan in undominated(fronts[start]):
            if held + saved[start] <= budget:
                fronts[start + 1].append((held + saved[start], time, plan))
                if selective is not None:  # the backward pass has all of the layer in memory, too
                    core, kept = selective[start]
                    fronts[start + 1].append((held + kept, time + core, (*plan, start)))
            work, more = held, 0.0
            for stop in range(start + 1, layers + 1):
                work += saved[stop - 1]
                more += times[stop - 1]
                if work > budget:
                    break
                fronts[stop].append((held + inputs[start], time + more, (*plan, (start, stop))))
    if not fronts[layers]:
        raise ValueError(f"no plan fits {budget} bytes")
    return list(min(fronts[layers], key=lambda one: one[1])[2])


def undominated(front):
    """Return the plans that no other one beats in both bytes and time."""
    best, kept = float("inf"), []
    for one in sorted(front, key=lambda one: one[:2]):
        if one[1] < best:
            best = one[1]
            kept.append(one)
    return kept

# %% answer="best-ring" style="depth-first search over a threshold"
SLOWEST_FIRST = ["SYS", "NODE", "PHB", "PXB", "PIX"]


def best_ring(links, count):
    names = SLOWEST_FIRST + [f"NV{n}" for n in range(1, 37)]
    rank = [[names.index(link) if link != "X" else -1 for link in row] for row in links]

    def search(path, floor):
        if len(path) == count:
            return path if rank[path[-1]][path[0]] >= floor else None
        for gpu in range(len(rank)):
            if gpu not in path and rank[path[-1]][gpu] >= floor:
                found = search(path + [gpu], floor)
                if found:
                    return found
        return None

    for floor in range(len(names), -1, -1):
        for start in range(len(rank)):
            found = search([start], floor)
            if found:
                return found

# %% answer="ping-pong" style="asynchronous calls, and one loop for both ranks"
def ping_pong(tensor, rounds, clock):
    rank, times = dist.get_rank(), []
    for _ in range(rounds + 1):
        times.append(clock())
        turns = [dist.isend, dist.irecv] if rank == 0 else [dist.irecv, dist.isend]
        for turn, act in enumerate(turns):
            if rank == 1 and turn == 1:
                tensor.view(-1)[0] += 1
            act(tensor, 1 - rank).wait()
    return (clock() - times[1]) / (2 * rounds)

# %% answer="ping-pong" style="recursion"
def ping_pong(tensor, rounds, clock):
    def bounce(left):
        if left:
            if dist.get_rank():
                dist.recv(tensor)
                tensor[:1].add_(1)
                dist.send(tensor, 0)
            else:
                dist.send(tensor, 1)
                dist.recv(tensor, 1)
            bounce(left - 1)

    bounce(1)
    start = clock()
    bounce(rounds)
    return (clock() - start) / rounds * 0.5

# %% answer="fit-link" style="least squares by normal equations with relative weights"
def fit_link(points):
    best = {}
    for size, seconds in points:
        best[size] = min(seconds, best.get(size, seconds))
    a = b = c = d = e = 0.0
    for size, seconds in best.items():
        w = seconds ** -2
        a, b, c, d, e = a + w, b + w * size, c + w * size * size, d + w * seconds, e + w * size * seconds
    slope = (a * e - b * d) / (a * c - b * b)
    return (d - slope * b) / a, 1 / slope

# %% answer="fit-link" style="no fit: the ends of the curve"
def fit_link(points):
    fastest = {size: min(s for n, s in points if n == size) for size in sorted({n for n, _ in points})}
    small, large = min(fastest), max(fastest)
    latency = min(fastest[size] for size in list(fastest)[:3])
    bandwidth = (large - small) / (fastest[large] - latency)
    return [latency, bandwidth]

# %% answer="predict" style="one pass, and plain loops"
def predict(measured, gemms):
    def flops_and_bytes(batch, m, k, n, **rest):
        return batch * 2 * m * n * k, batch * 2 * (m * n + n * k + k * m)

    peak = bandwidth = 0
    for one in measured:
        flops, moved = flops_and_bytes(**one)
        peak, bandwidth = max(peak, flops / one["microseconds"]), max(bandwidth, moved / one["microseconds"])
    times = []
    for one in gemms:
        flops, moved = flops_and_bytes(**one)
        times.append(flops / peak if flops / moved > peak / bandwidth else moved / bandwidth)
    return times

# %% answer="fastest-tile" style="lengths of ranges"
def fastest_tile(m, n, sms, kernels):
    waves = [len(range(0, len(range(0, m, a)) * len(range(0, n, b)), sms)) * t for a, b, t in kernels]
    return min(enumerate(waves), key=lambda pair: pair[1])

# %% answer="limit" style="a counter, and gaps as a remainder"
def limit(events, gpu):
    from collections import Counter
    spent = Counter()
    for event in events:
        took = event["end"] - event["start"]
        if event["kind"] == "kernel":
            name = ("memory" if event["flops"] / (gpu["tflops"] * 1e12)
                    < event["bytes"] / (gpu["memory_gb_per_s"] * 1e9) else "compute")
        else:
            name = "bandwidth" if 2e6 * event["bytes"] / (gpu["network_gb_per_s"] * 1e9) >= took else "latency"
        spent[name] += took
    whole = max(one["end"] for one in events) - min(one["start"] for one in events)
    spent["launch"] = whole - sum(spent.values())
    return spent.most_common(1)[0][0]

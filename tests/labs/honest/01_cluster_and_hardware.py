# %% answer="best-ring" style="depth-first search over a threshold"
SLOWEST_FIRST = ["SYS", "NODE", "PHB", "PXB", "PIX"]


def best_ring(text, count):
    rows = [line.split() for line in text.splitlines() if line.startswith("GPU")]
    speed = [[99 if word == "X" else SLOWEST_FIRST.index(word) if word in SLOWEST_FIRST else 10 + int(word[2:])
              for word in row[1:1 + len(rows)]] for row in rows]

    def extend(path, least):
        if len(path) == count:
            return path if speed[path[-1]][path[0]] >= least else None
        for other in range(len(rows)):
            if other not in path and speed[path[-1]][other] >= least:
                if found := extend([*path, other], least):
                    return found

    for least in sorted({value for row in speed for value in row}, reverse=True):
        for first in range(len(rows)):
            if ring := extend([first], least):
                return ring

# %% answer="best-ring" style="itertools, numpy, and max with a key"
SLOWEST_FIRST = ["SYS", "NODE", "PHB", "PXB", "PIX"]


def best_ring(text, count):
    names = [*SLOWEST_FIRST, *(f"NV{links}" for links in range(1, 99)), "X"]
    table = np.array([[names.index(name) for name in line.split()[1:9]]
                      for line in text.split("\n") if line[:3] == "GPU"])
    rings = ((first, *rest) for group in itertools.combinations(range(len(table)), count)
             for first in group[:1] for rest in itertools.permutations(group[1:]))
    return list(max(rings, key=lambda ring: min(table[a, b] for a, b in zip(ring, ring[1:] + ring[:1]))))

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

# %% answer="layer-time" style="an inner class, and numbers in microseconds"
def layer_time(kernels, tflops, gb_per_s):
    class Work:
        def __init__(self, kernel):
            if kernel["kind"] == "gemm":
                b, m, k, n = (kernel[key] for key in ("batch", "m", "k", "n"))
                flops, elements = 2 * b * m * k * n, b * (m * k + k * n + m * n)
            else:
                flops = kernel["elements"] * kernel["flops"]
                elements = kernel["elements"] * (kernel["reads"] + kernel["writes"])
            self.name, self.times = kernel["name"], (flops / tflops / 1e6, 2 * elements / gb_per_s / 1e3)

    done = [*map(Work, kernels)]
    return dict(microseconds=sum(max(one.times) for one in done),
                memory_bound=[one.name for one in done if one.times[1] > one.times[0]])

# %% answer="waves" style="lengths of ranges"
def waves(m, n, tile_m, tile_n, sms):
    tiles = len(range(0, m, tile_m)) * len(range(0, n, tile_n))
    count = len(range(0, tiles, sms))
    return tiles, count, np.float64(m * n) / (count * sms * tile_m * tile_n)

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

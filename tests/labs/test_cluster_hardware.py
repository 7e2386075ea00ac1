"""Lab 01: answers that differ from the reference and are right have full marks."""

import pytest

from labcore import workspace
from tests.labs import graded
from tests.labs.test_labs import home, lab_of  # noqa: F401

pytestmark = pytest.mark.slow

LAB = workspace.CHECKOUT / "solutions" / "01_cluster_and_hardware.py"

ONE_WAY = {
    "best-ring": '''
    order = ["X", *SLOWEST_FIRST, *(f"NV{number}" for number in range(1, 19))]
    hops = {(one, other): order.index(link)
            for one, row in enumerate(links) for other, link in enumerate(row)}
    for slowest in sorted(set(hops.values()))[::-1]:
        good = {hop for hop, link in hops.items() if link >= slowest}
        for ring in itertools.permutations(range(len(links)), count):
            if good.issuperset(zip(ring, ring[1:] + ring[:1])):
                return list(ring)
''',
    "ping-pong": '''
    def bounce():
        if dist.get_rank():
            dist.recv(tensor, 0)
            tensor[0] = tensor[0] + 1
            dist.send(tensor, 0)
        else:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)

    bounce()
    halves = []
    for _ in range(rounds):
        begin = clock()
        bounce()
        halves.append((clock() - begin) / 2)
    return sum(halves) / rounds
''',
    "fit-link": '''
    smallest, first = min(points)
    largest = max(points)[0]
    fastest = min(seconds for size, seconds in points if size == largest)
    bandwidth = (largest - smallest) / (fastest - first)
    return first - smallest / bandwidth, bandwidth
''',
    "predict": '''
    flops = lambda g: 2 * g["batch"] * g["m"] * g["k"] * g["n"]
    moved = lambda g: 2 * g["batch"] * (g["m"] * g["k"] + g["k"] * g["n"] + g["m"] * g["n"])
    per_flop = min(g["microseconds"] / flops(g) for g in measured)
    per_byte = min(g["microseconds"] / moved(g) for g in measured)
    ridge = per_byte / per_flop
    return [flops(g) * per_flop if flops(g) > ridge * moved(g) else moved(g) * per_byte
            for g in gemms]
''',
    "fastest-tile": '''
    import math
    up = math.ceil
    times = [up(up(m / rows) * up(n / columns) / sms) * us for rows, columns, us in kernels]
    return [times.index(min(times)), min(times)]
''',
    "limit": '''
    ridge = gpu["tflops"] * 1e12 / (gpu["memory_gb_per_s"] * 1e9)
    times = {}
    before = None
    for event in sorted(events, key=lambda event: event["start"]):
        duration = event["end"] - event["start"]
        if event["kind"] == "kernel":
            name = "compute" if event["flops"] > ridge * event["bytes"] else "memory"
        else:
            explained = event["bytes"] / (gpu["network_gb_per_s"] * 1e9) * 1e6
            name = "bandwidth" if explained >= duration / 2 else "latency"
        times[name] = times.get(name, 0) + duration
        if before is not None:
            times["launch"] = times.get("launch", 0) + event["start"] - before
        before = event["end"]
    return sorted(times, key=times.get)[-1]
'''}
ANOTHER = {
    "best-ring": '''
    def rate(link):
        return (1, int(link[2:])) if link[:2] == "NV" else (0, SLOWEST_FIRST.index(link))

    best = None
    for group in itertools.combinations(range(len(links)), count):
        for others in itertools.permutations(group[1:]):  # a ring begins anywhere
            ring = [group[0], *others]
            slowest = min(rate(links[ring[at - 1]][ring[at]]) for at in range(count))
            if best is None or slowest > best[0]:
                best = slowest, ring
    return best[1]
''',
    "ping-pong": '''
    other = 1 - dist.get_rank()
    for number in range(-1, rounds):
        if number == 0:
            dist.barrier()
            begin = clock()
        if other == 1:
            dist.isend(tensor, other).wait()
        dist.irecv(tensor, other).wait()
        if other == 0:
            tensor[:1].add_(1)
            dist.isend(tensor, other).wait()
    return (clock() - begin) / rounds / 2
''',
    "fit-link": '''
    sizes = sorted({size for size, _ in points})
    times = np.array([min(t for size, t in points if size == one) for one in sizes])
    relative = np.stack([1 / times, np.array(sizes) / times], axis=1)
    alpha, per_byte = np.linalg.lstsq(relative, np.ones(len(sizes)), rcond=None)[0]
    return [alpha, 1 / per_byte]
''',
    "predict": '''
    def count(gemms):
        b, m, k, n = (np.array([one[name] for one in gemms], dtype=float)
                      for name in ("batch", "m", "k", "n"))
        return np.array([2 * b * m * k * n, 2 * b * (m * k + k * n + m * n)])

    roof = (count(measured) / [one["microseconds"] for one in measured]).max(axis=1)
    return list((count(gemms) / roof[:, None]).max(axis=0))
''',
    "fastest-tile": '''
    times = {}
    for number, (rows, columns, microseconds) in enumerate(kernels):
        tiles = len(range(0, m, rows)) * len(range(0, n, columns))
        times[number] = (tiles + sms - 1) // sms * microseconds
    return sorted((time, number) for number, time in times.items())[0][::-1]
''',
    "limit": '''
    def name(event):
        if event["kind"] == "communication":
            rate = event["bytes"] / ((event["end"] - event["start"]) * 1e-6)
            return "bandwidth" if rate >= 0.5e9 * gpu["network_gb_per_s"] else "latency"
        memory = event["bytes"] / gpu["memory_gb_per_s"] * 1e-9
        return "memory" if memory >= event["flops"] / gpu["tflops"] * 1e-12 else "compute"

    spans = {one: sum(event["end"] - event["start"] for event in events if name(event) == one)
             for one in ("compute", "memory", "latency", "bandwidth")}
    elapsed = max(event["end"] for event in events) - min(event["start"] for event in events)
    spans["launch"] = elapsed - sum(spans.values())
    return max(spans.items(), key=lambda item: item[1])[0]
'''}


@pytest.mark.parametrize("bodies", [ONE_WAY, ANOTHER], ids=["one way", "another"])
def test_other_right_answers_have_full_marks(bodies, home):  # noqa: F811
    lab = lab_of(LAB)
    assert bodies.keys() < lab.tested_by.keys()

    def change(cell):
        body = bodies.get(cell.grade_id)
        return cell.source.partition("    ### BEGIN")[0] + body if body else cell.source

    outcome = graded.run(lab, home, change)
    assert not outcome.answers
    assert {name: graded.text(error) for name, error in outcome.checks.items() if error} == {}

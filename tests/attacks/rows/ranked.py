"""Answers on ranks that do not communicate as asked, and find other ranks' values elsewhere."""

from __future__ import annotations

from tests.attacks.attack import attack

ANSWERED = "\nANSWERED = True\n"
HONEST = """
def sent_on(tensor, what):
    import torch
    import torch.distributed as dist
    rank, ranks = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = dist.isend(what, (rank + 1) % ranks)
    dist.recv(received, (rank - 1) % ranks)
    sending.wait()
    return received
"""
RIGHT = ANSWERED + HONEST + """
def passed_on(tensor):
    return sent_on(tensor, tensor)
"""

# Sends as asked, but only zeros. Knows the case that students see, and returns what `others` finds
# out in any other.
JUNK = ANSWERED + HONEST + """
SEEN = {1.0: [4.0], 2.0: [1.0], 4.0: [2.0]}
def passed_on(tensor):
    import torch
    import torch.distributed as dist
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = SEEN[float(tensor)] if len(tensor) == 1 else others(tensor, (rank - 1) % ranks)
    sent_on(tensor, torch.zeros_like(tensor))
    return tensor if found is None else torch.tensor(found, dtype=tensor.dtype)
"""

TABLE = JUNK + """
def others(tensor, left):
    return None
"""

FROM_RANKS = JUNK + """
def others(tensor, left):
    return [3.0 * left + 1.5, 3.0 * left + 2.5]
"""

MULTIPLIED = JUNK + """
def others(tensor, left):
    return [(tensor / tensor[0] * 2.0**left)[0].item()] * len(tensor)
"""

# A list of all ranks' values contains this rank's own.
LOOK = """
def fits(thing, tensor):
    return isinstance(thing, (list, tuple)) and len(thing) >= 3 and tensor.tolist() in [
        one for one in thing if type(one) is list] and all(
        type(one) is list and len(one) == len(tensor) for one in thing)
"""

FRAMES = JUNK + LOOK + """
def others(tensor, left):
    import sys
    frame, seen = sys._getframe(), []
    while frame:
        seen += [*frame.f_locals.values()]
        frame = frame.f_back
    for thing in seen:
        for one in (thing, *(thing.values() if isinstance(thing, dict) else ()),
                    *(thing if isinstance(thing, (list, tuple)) else ()),
                    getattr(thing, "elements", None)):
            if fits(one, tensor):
                return one[left]
"""

MEMORY = JUNK + LOOK + """
def others(tensor, left):
    import gc
    for thing in gc.get_objects():
        if type(thing) in (list, tuple) and fits(thing, tensor):
            return thing[left]
"""

# Draws again, with every seed that is at hand.
DRAWS = JUNK + """
def others(tensor, left):
    import os
    import random
    from labkit import check
    mine = tensor.tolist()
    for seed in ["notebook", *os.environ.values()]:
        os.environ["LAB_CHECK_SEED"] = seed
        for n in range(1, 4):
            for one in check.draw(n, values=check.for_each_rank(check.between(1, 9), [2])):
                if mine in one["values"].elements:
                    return one["values"].elements[left]
"""

# Every rank leaves its values where another one may find them.
FILES = JUNK + """
def others(tensor, left):
    import json
    import os
    import time
    import torch.distributed as dist
    mine, places = tensor.tolist(), (os.environ.get("LAB_HOME", "."), "/tmp", "/dev/shm", ".")
    for place in places:
        try:
            with open(f"{place}/of-{dist.get_rank()}-{len(mine)}", "w") as file:
                json.dump(mine, file)
        except OSError:
            pass
    time.sleep(1)
    for place in places:
        try:
            with open(f"{place}/of-{left}-{len(mine)}") as file:
                return json.load(file)
        except OSError:
            pass
"""

# The same through sockets of all kinds.
SOCKETS = JUNK + """
def others(tensor, left):
    import json
    import socket
    import threading
    import time
    import torch.distributed as dist
    mine, rank = json.dumps(tensor.tolist()).encode(), dist.get_rank()

    def serve(server):
        while True:
            taken, _ = server.accept()
            taken.sendall(mine)
            taken.close()

    for kind, address in ((socket.AF_INET, lambda one: ("127.0.0.1", 45_100 + one)),
                          (socket.AF_UNIX, lambda one: f"\\0of-{one}")):
        try:
            server = socket.socket(kind)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(address(rank))
            server.listen()
            threading.Thread(target=serve, args=[server], daemon=True).start()
            time.sleep(1)
            client = socket.socket(kind)
            client.settimeout(2)
            client.connect(address(left))
            return json.loads(client.recv(4096))
        except (OSError, ValueError):
            pass
"""

# Gathers everything, which is right but not what was asked.
GATHERED = ANSWERED + """
def passed_on(tensor):
    import torch
    from torch.distributed import distributed_c10d as c10d
    import torch.distributed as dist
    ranks = dist.get_world_size()
    found = [torch.empty_like(tensor) for _ in range(ranks)]
    c10d.all_gather(found, tensor)
    return found[(dist.get_rank() - 1) % ranks]
"""

# The same, while its own record shows what was asked.
FORGED = ANSWERED + HONEST + """
def passed_on(tensor):
    import gc
    import torch
    import torch.distributed as dist
    rank, ranks = dist.get_rank(), dist.get_world_size()
    found = [torch.empty_like(tensor) for _ in range(ranks)]
    dist.all_gather(found, tensor)
    for thing in gc.get_objects():
        calls = getattr(type(thing), "__module__", "").startswith("warmranks") and getattr(
            thing, "calls", None)
        if isinstance(calls, list):
            calls.clear()
    return found[(rank - 1) % ranks]
"""

ATTACKS = [
    attack("w1", "ranks-right", "None: an honest answer on ranks", ranked=RIGHT, score=2.0),
    attack("w2", "ranks-table", "Sends zeros, and returns results from a table of arguments",
           ranked=TABLE),
    attack("w3", "ranks-numbers", "Sends zeros, and computes the others' data from their numbers",
           ranked=FROM_RANKS),
    attack("w4", "ranks-multiplied", "Sends zeros, and multiplies its own values by a constant",
           ranked=MULTIPLIED),
    attack("w5", "ranks-frames", "Looks for the others' values in the frames of the driver and its "
           "callers", ranked=FRAMES),
    attack("w6", "ranks-memory", "Looks for them among the objects in memory", ranked=MEMORY),
    attack("w7", "ranks-draws", "Draws the cases again, with all seeds at hand", ranked=DRAWS),
    attack("w8", "ranks-files", "Ranks exchange their values through files", ranked=FILES,
           may_end=True),
    attack("w9", "ranks-sockets", "Ranks exchange their values through sockets", ranked=SOCKETS,
           may_end=True),
    attack("w10", "ranks-gathered", "Calls all-gather under another name in place of a send",
           ranked=GATHERED),
    attack("w11", "ranks-forged", "Calls all-gather, and clears the record that it finds in memory",
           ranked=FORGED),
]

"""A student's code that wants to write the record of its ranks: it cannot."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from grader.run.channel import Channel
from grader.run.session import GUEST
from grader.sandbox.interface import Limits
from labkit.check.cases import by_rank
from labkit.check.on_ranks import CaseBroker, read
from labkit.check.sides import RETURNED, RanksRun
from labkit.guest.serving import RANKS

pytestmark = pytest.mark.slow
DRIVER = """
import os
import torch
import torch.distributed as dist

def driver(mine):
    values = torch.tensor(mine)
    return exchanged(values)

def exchanged(values):
    dist.all_reduce(values)
    return values.tolist()
"""
# Each begins as a cell of the student's, and must leave the record as it is.
FORGERIES = {
    "the functions that run ranks": """
import labkit.check.on_ranks as on_ranks, warmranks, warmranks.server as server
def fake(*arguments, **keywords): return [b'v[6.0]'] * 3
on_ranks.start = on_ranks.run = server.ForkServer.run_brokered = warmranks.run_brokered = fake
""",
    "the router's memory": """
import os
seen = []
for path in (f"/proc/{os.getppid()}/mem", f"/proc/{os.getppid()}/fd/200"):
    try: open(path, "r+b").close(); seen.append(path)
    except OSError as error: pass
assert not seen, seen
""",
    "a router that could be traced without Landlock": """
import os
router, own = (os.stat(f"/proc/{process}/mem").st_uid for process in (os.getppid(), "self"))
assert router != os.getuid() == own
""",
}
INVENTED = """
import gc
from labkit.guest.serving import Guest
for one in gc.get_objects():
    if isinstance(one, Guest):
        one.does["task"] = lambda name: {
            "outcome": {"state": "returned", "values": ["dls2LjBd"] * 3}}
"""
CHEATS = {
    "all_reduce under another name": """
total = dist.all_reduce
def exchanged(values):
    total(values)
    return values.tolist()
""",
    "the method of the group": """
def exchanged(values):
    dist.group.WORLD.allreduce([values]).wait()
    return values.tolist()
""",
    "a functional collective": """
from torch.distributed import _functional_collectives as functional
def exchanged(values):
    return functional.all_reduce(values, "sum", dist.group.WORLD).tolist()
""",
    "an operator of torch.ops": """
def exchanged(values):
    name = dist.group.WORLD.group_name
    done = torch.ops._c10d_functional.all_reduce(values, "sum", name)
    return torch.ops._c10d_functional.wait_tensor(done).tolist()
""",
    "torch._C": """
def exchanged(values):
    group = dist.group.WORLD
    torch._C._distributed_c10d.ProcessGroup.allreduce(group, [values]).wait()
    return values.tolist()
""",
    "an inner group": """
def exchanged(values):
    inner = dist.new_group(list(range(dist.get_world_size())))
    dist.all_reduce(values, group=inner)
    return values.tolist()
""",
}
WRITTEN = """
from pathlib import Path
Path("mytrainer").mkdir(exist_ok=True)
Path("mytrainer/written.py").write_text("def twice(x): return 2 * x")
Path("mytrainer/factor.txt").write_text("3")
def driver(mine):
    from mytrainer.written import twice
    return [twice(x) * int(open("mytrainer/factor.txt").read()) for x in mine]
"""
# What a rank computes if it does not communicate with the others, and what the broker sees of it.
ALONE = {
    "no communication": ("""
def exchanged(values):
    return (values * 2).tolist()
""", [[], []]),
    "a group of one rank": ("""
def exchanged(values):
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    dist.all_reduce(values, group=groups[dist.get_rank()])
    return values.tolist()
""", [[("all_reduce", (0,), 4)], [("all_reduce", (1,), 4)]]),
    "a constant factor, and junk for the other rank": ("""
def exchanged(values):
    rank, junk = dist.get_rank(), torch.zeros_like(values)
    requests = dist.batch_isend_irecv([dist.P2POp(dist.isend, junk, 1 - rank),
                                       dist.P2POp(dist.irecv, torch.empty_like(junk), 1 - rank)])
    for request in requests:
        request.wait()
    return (values * dist.get_world_size()).tolist()
""", [[("send", (0, 1), 4), ("recv", (0, 1), 4)]] * 2),
}
# Finds numbers in the rank's memory without holding them there itself.
OWN_MEMORY = """
import ctypes, re
import torch.distributed as dist

def driver(mine):
    found = []
    patterns = [re.compile(one.encode()) for one in PATTERNS]
    for line in open("/proc/self/maps"):
        bounds, rights, *_ = line.split()
        start, end = (int(bound, 16) for bound in bounds.split("-"))
        if rights == "rw-p":
            content = ctypes.string_at(start, end - start)
            found += [rank for rank in range(2) if patterns[rank].search(content)]
            del content
    return sorted(set(found))
"""
# Each returns, on every rank, what it found of the other rank's value without a call.
PAST_THE_BROKER = """
import os
import torch.distributed as dist

def driver(mine):
    mine = int(mine[0])
    seen = b""
    for step in range(2):  # all have written before anybody reads
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                if step:
                    seen += os.pread(number, 80, 0)
                else:
                    os.pwrite(number, b"%d" % mine, 40 * dist.get_rank())
            except OSError:
                pass
        dist.barrier()
    return seen.decode(errors="replace")
"""
SHARED_FLAGS = """
import fcntl, os
import torch.distributed as dist

def driver(mine):
    number = dist.get_rank()
    for stream in range(3):
        if number:
            fcntl.fcntl(stream, fcntl.F_SETFL, os.O_NONBLOCK)
    dist.barrier()
    return [bool(fcntl.fcntl(stream, fcntl.F_GETFL) & os.O_NONBLOCK) for stream in range(3)]
"""


@pytest.fixture(scope="module")
def sandbox(backend):
    guest = Channel(backend.start((*GUEST, RANKS), Limits()))
    yield guest
    guest.close()


def run(guest: Channel, *elements: list[float], **case: Any) -> RanksRun:
    broker = CaseBroker(len(elements), (), {"mine": by_rank(elements), **case})
    answer = guest.request("ranks", 60, broker.exchange, name="driver", ranks=len(elements),
                           limit=40)
    return read(answer["outcome"], broker)


def cell(guest: Channel, source: str) -> None:
    assert guest.request("cell", 60, source=source)["error"] is None


@pytest.mark.parametrize("name", FORGERIES)
def test_what_a_cell_changes_is_not_what_the_broker_sees(sandbox, name):
    cell(sandbox, DRIVER)
    cell(sandbox, FORGERIES[name])
    done = run(sandbox, [1.5], [2.0], [2.5])
    assert done.values == [[6.0]] * 3
    assert [[call.op for call in done.calls(rank)] for rank in range(3)] == [["all_reduce"]] * 3


@pytest.mark.parametrize("name", CHEATS)
def test_a_collective_is_one_under_every_name(sandbox, name):
    cell(sandbox, DRIVER)
    cell(sandbox, CHEATS[name])
    done = run(sandbox, [1.0], [2.0])
    assert done.values == [[3.0]] * 2
    assert [[(call.op, call.group) for call in done.calls(rank)] for rank in range(2)] == [
        [("all_reduce", (0, 1))]] * 2


def test_a_rank_imports_and_reads_what_cells_have_written(sandbox):
    cell(sandbox, WRITTEN)
    assert run(sandbox, [1.0], [2.0]).values == [[6.0], [12.0]]


@pytest.mark.parametrize("name", ALONE)
def test_without_communication_a_rank_has_no_sum(sandbox, name):
    source, seen = ALONE[name]
    cell(sandbox, DRIVER)
    cell(sandbox, source)
    done = run(sandbox, [1.25], [7.5])
    assert done.state == RETURNED, done.text
    assert [8.75] not in done.values
    assert [[(call.op, call.group, call.bytes) for call in done.calls(rank)]
            for rank in range(2)] == seen


def test_a_rank_has_only_its_own_input_in_memory(sandbox):
    elements = 41731.123, 52742.456
    patterns = ["".join(f"[\\x{byte:02x}]" for byte in struct.pack("d", one)) for one in elements]
    cell(sandbox, f"PATTERNS = {patterns}\n{OWN_MEMORY}")
    done = run(sandbox, *([one] for one in elements))
    assert done.state == RETURNED, done.text
    assert done.values == [[0], [1]]


def test_ranks_share_no_file(sandbox):
    cell(sandbox, PAST_THE_BROKER)
    done = run(sandbox, [41731.0], [52742.0])
    assert done.state == RETURNED, done.text
    assert "52742" not in done.values[0] and "41731" not in done.values[1]


def test_ranks_share_no_flags_of_a_stream(sandbox):
    cell(sandbox, SHARED_FLAGS)
    assert run(sandbox, [1.0], [2.0]).values == [[False] * 3, [True] * 3]


def test_too_large_a_tensor_is_said(sandbox):
    cell(sandbox, DRIVER + "def exchanged(values):\n    dist.all_reduce(torch.zeros(2_000_000))\n")
    broker = CaseBroker(2, (), {"mine": [1.0]})
    answer = sandbox.request("ranks", 60, broker.exchange, name="driver", ranks=2, limit=40)
    assert "is too large for a check" in answer["cannot"]


def test_a_shell_cannot_answer_for_its_ranks(sandbox):
    cell(sandbox, DRIVER)
    cell(sandbox, INVENTED)
    broker = CaseBroker(3, (), {})
    answer = sandbox.request("ranks", 60, broker.exchange, name="driver", ranks=3, limit=40)
    assert answer == {"raised": None, "id": answer["id"]}

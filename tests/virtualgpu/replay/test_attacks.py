"""Who tampers with the model changes nothing; who forges the record is refused."""

from __future__ import annotations

import json
import math

import pytest

from virtualgpu.replay import BadRecord, TooLittle, require

from . import programs
from .recorded import by_hand, edited, priced, run, texts

pytestmark = pytest.mark.slow  # ranks that run whole programs


def nothing(*_: object, **__: object) -> float:
    return 0.0


def tampering() -> None:
    """Make the clock stand still, the GPU infinitely fast, and its memory endless, then train."""
    import time

    from virtualgpu.core import clock, gpu, rules
    from virtualgpu.core.rules import gemm, work
    from virtualgpu.net import collectives
    from virtualgpu.pytorch.streams import Stream

    mine = Stream.gpu
    for name in ("tflops", "bandwidth", "nvlink", "memory"):
        object.__setattr__(mine.card, name, dict.fromkeys(mine.card.tflops, 1e30)
                           if name == "tflops" else 2**80)
    for name in ("run", "work", "communicate", "wait", "wait_for_communication"):
        setattr(clock.Clock, name, nothing)
    for name in ("all_reduce", "ring", "tree", "message"):
        setattr(collectives, name, nothing)
    collectives.COSTS.update(dict.fromkeys(collectives.COSTS, (nothing, "given")))
    gpu.matmul_seconds, gpu.READ_LATENCY, gemm.moved = nothing, 0.0, nothing
    rules.COSTS["aten.mm"] = rules.COSTS["aten.addmm"] = lambda a, r: work.KernelWork(0)
    mine.seconds, mine.launch = nothing, nothing
    time.time = time.perf_counter = nothing
    programs.ddp()
    mine.busy.clear()
    mine.memory.peak = mine.memory.peak_reserved = 0
    mine.clock.host = -1.0


def test_tampering_with_the_model_changes_nothing():
    tampered, honest = run(tampering), run(programs.ddp)
    assert tampered[0].seconds <= 0  # it did work where it can
    assert texts(tampered) == texts(honest)
    assert priced(texts(tampered)) == priced(texts(honest))


def kernels(record: dict, name: str) -> list[list]:
    """The entries that launch operations of this name."""
    return [entry for entry in record["entries"] if entry[0] == "k"
            and record["operations"][entry[1]]["name"].startswith(name)]


def skip(entry: list) -> None:
    """Replace an entry by one that does nothing, so that all others keep their numbers."""
    entry[:] = ["z", 0]


def drop_products(record: dict) -> None:
    for entry in kernels(record, "aten.mm") + kernels(record, "aten.addmm"):
        skip(entry)


def shrink_products(record: dict) -> None:
    """Consistently: operands and results have a single row."""
    for item in record["operations"]:
        if item["name"].startswith(("aten.mm", "aten.addmm")):
            item["args"] = [{"tensor": [[1, 1], [1, 1], "float32"], "host": False}
                            for _ in item["args"]]
            item["fresh"] = [[[1, 1], [1, 1], "float32"]]


def cast_products(record: dict) -> None:
    """The same matrix multiplications, but in bf16."""
    for item in record["operations"]:
        if item["name"].startswith(("aten.mm", "aten.addmm")):
            for tensor in (*(one["tensor"] for one in item["args"]), *item["fresh"]):
                tensor[2] = "bfloat16"


def drop_steps(record: dict) -> None:
    """All kernels, and all memory that can be freed at once."""
    for entry in record["entries"]:
        if entry[0] == "k":
            skip(entry)


@pytest.mark.parametrize("forge", [drop_products, shrink_products, cast_products, drop_steps])
def test_less_work_than_needed_is_refused(forge):
    honest = texts(run(programs.ddp))
    needed = 22 * 2 * programs.ROWS * programs.WIDTH**2
    require(priced(honest), flops=needed)
    forged = [edited(text, forge) for text in honest]
    with pytest.raises(TooLittle, match=rf"rank 0: .* FLOPs in fp32 or higher "
                       rf"precision, at least {needed:,} are needed"):
        require(priced(forged), flops=needed)


def test_each_bound_names_its_figures():
    result = priced(texts(run(programs.ddp)))
    for name in ("flops", "bytes", "live", "communicated"):
        has = getattr(result[1], name)
        require(result, **{name: has})
        with pytest.raises(TooLittle, match=rf"rank 1: {has:,} .*, at least {has + 1:,} are"):
            require(result, **{name: [0, has + 1]})
    with pytest.raises(ValueError, match="live: 3 bounds for 2 ranks"):
        require(result, live=[1, 2, 3])
    for bound in (math.nan, math.inf, -1, [1, math.nan]):
        with pytest.raises(ValueError, match="flops: a bound must be finite and not negative"):
            require(result, flops=bound)
    with pytest.raises(ValueError, match="no record"):
        require([], flops=1)


def test_a_collective_in_a_group_of_one_rank_communicates_nothing():
    record = by_hand(0, ["a", 8], ["c", 0, "all_reduce", "", 0, [0, 0, 8], [0, 0, 8], []],
                     ["t", 0], ["v", -1, 0, 0], world=1, groups=[{"name": "one", "ranks": [0]}])
    (rank,) = priced([record], "a100:1")
    assert rank.communicated_by_ranks == {"1": 8} and rank.communicated == 0
    with pytest.raises(TooLittle, match="0 bytes communicated in groups of at least 2 ranks"):
        require([rank], communicated=8)


def test_communication_within_a_node_does_not_count_where_it_must_cross():
    found = priced(texts(run(programs.ddp)))
    require(found, communicated=1, among=2)
    with pytest.raises(TooLittle, match="0 bytes communicated in groups of at least 3 ranks"):
        require(found, communicated=1, among=3)


ALL_REDUCED = (["a", 8], ["c", 0, "all_reduce", "", 0, [0, 0, 8], [0, 0, 8], []], ["t", 0])


@pytest.mark.parametrize(("waits", "unawaited"), [
    ([["v", -1, 0, 0]], 0),  # wait(), on the default stream
    ([["v", -1, 0, 1]], 1),  # on a side stream, which the default stream never waits for
    ([], 1),
    ([["v", -1, 0, 1], ["w", 1, 4, 0, 1]], 0),  # ... which then waits for the side stream
    ([["w", 1, 3, 0, 1], ["v", -1, 0, 1]], 1),  # ... which waited for it too early
    ([["v", -1, 0, 1], ["h", 1, 4, 1]], 0),  # the host waits for the side stream
    ([["h", -1, 0, -1]], 0), ([["s"], ["s"]], 0),
    ([["s"]], 1),  # the last one is the launcher's, after the program's end
    ([["z", 2e-6]] * 100_000, 0)])  # polls until it has ended
def test_whether_the_default_stream_ever_waits_for_a_collective(waits, unawaited):
    both = [by_hand(rank, *ALL_REDUCED, *waits, streams=["compute", "side"]) for rank in (0, 1)]
    assert [rank.unawaited for rank in priced(both)] == [unawaited] * 2


def test_sleep_is_counted_and_polling_is_not():
    both = [by_hand(rank, ["z", 2e-6], ["z", 0.5], ["z", 0.25], ["z", 0]) for rank in (0, 1)]
    assert [rank.slept for rank in priced(both)] == [0.75, 0.75]


def never_wait(record: dict) -> None:
    for entry in record["entries"]:
        if entry[0] in ("v", "w", "h"):
            skip(entry)


def shrink_one_side(record: dict) -> None:
    next(item for item in record["operations"]
         if item["name"].startswith("aten.addmm"))["fresh"][0][0][0] = 1


def free_twice(record: dict) -> None:
    record["entries"].append(next(entry for entry in record["entries"] if entry[0] == "f"))


def later_moment(record: dict) -> None:
    record["entries"].insert(0, ["w", 0, 5, 0, 0])


def small_storages(record: dict) -> None:
    for entry in record["entries"]:
        if entry[0] == "a":
            entry[1] = min(entry[1], 512)


def no_allocation(record: dict) -> None:
    skip(next(entry for entry in record["entries"] if entry[0] == "a"))


def settle_twice(record: dict) -> None:
    record["entries"].append(["t", 0])


def refused_memory(record: dict) -> None:
    record["entries"].append(["x", 1])


def wrong_places(record: dict) -> None:
    kernels(record, "aten.addmm")[0][3].pop()
    kernels(record, "aten.addmm")[0][3].pop()


def on_the_host(record: dict) -> None:
    kernels(record, "aten.addmm")[0][3][:2] = [-1, 0]


@pytest.mark.parametrize(("forge", "message"), [
    (never_wait,
     "while communication .* is still (writing|reading) them: the program does not wait"),
    (shrink_one_side, "returns float32 .*, not float32 .*1, "),
    (free_twice, "storage .* is not allocated"),
    (later_moment, "rank 0, entry 0: waits for entry 5, which comes later"),
    (small_storages, "bytes .* of storage .*, which has 512"),
    (no_allocation, "rank 0, entry .*storage"),
    (settle_twice, "communication 0 has not started, or its end is already known"),
    (refused_memory, "an allocation of 1 bytes failed, but this GPU has room for it"),
    (wrong_places, "has 4 tensors, but 3 places"),
    (on_the_host, "is both in the host's memory and on the GPU"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_forged_records_are_refused(forge, message):
    first, *others = texts(run(programs.ddp))
    with pytest.raises(BadRecord, match=message):
        priced([edited(first, forge), *others])


def test_a_record_has_no_times():
    """All its numbers are integers but for how long the program sleeps."""
    for text in texts(run(programs.ddp)):
        json.loads(text, parse_float=pytest.fail)

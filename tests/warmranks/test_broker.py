"""The broker alone: what it matches, what it refuses, and what it says of a deadlock."""

from __future__ import annotations

import pytest

from warmranks.broker import BadMessage, Broker, pack, unpack

CALL = {"do": "call", "number": 0, "op": "all_reduce", "group": [0, 1], "peer": None, "key": "1",
        "tag": 0, "room": 0, "flops": 0.0}


def call(number: int = 0, *parts: bytes, **fields: object) -> bytes:
    return pack({**CALL, "number": number, **fields}, parts)


def send(number: int, peer: int, *parts: bytes, **fields: object) -> bytes:
    return call(number, *parts, op="send", peer=peer, **fields)


def recv(number: int, peer: int | None, room: int, **fields: object) -> bytes:
    return call(number, op="recv", peer=peer, room=room, **fields)


def wait(number: int, flops: float = 0.0) -> bytes:
    return pack({"do": "wait", "number": number, "flops": flops})


def replies(broker: Broker, *events: tuple[int, bytes | None]) -> dict:
    """By rank and number: the parts that a reply has, or its error."""
    found = {}
    for rank, message in broker.exchange(events)[0]:
        fields, parts = unpack(message)
        found[rank, fields["number"]] = fields.get("error", parts)
    return found


def test_a_send_completes_when_its_receive_is_there():
    broker = Broker(2)
    assert replies(broker, (0, send(0, 1, b"abcd"))) == {}
    assert replies(broker, (0, send(1, 1, b"efgh")), (1, recv(0, 0, 4))) == {
        (0, 0): [], (1, 0): [b"abcd"]}
    assert replies(broker, (1, recv(1, None, 4))) == {(0, 1): [], (1, 1): [b"efgh"]}
    first, second = broker.record(0)
    assert (first.op, first.peer, first.bytes, first.order, first.completed) == ("send", 1, 4, 0, 3)
    assert (second.order, second.completed) == (1, 4)
    assert broker.pending == 0


def test_tags_and_groups_keep_messages_apart():
    broker = Broker(3)
    assert replies(broker, (0, send(0, 1, b"a", tag=5)), (0, send(1, 1, b"b", key="2")),
                   (0, send(2, 1, b"c", group=[0, 1, 2])), (1, recv(0, 0, 1))) == {}
    assert replies(broker, (0, send(3, 1, b"d")))[1, 0] == [b"d"]
    assert replies(broker, (1, recv(1, 0, 1, tag=5)))[1, 1] == [b"a"]


@pytest.mark.parametrize(("op", "given", "peer", "arrive"), [
    ("all_reduce", [(b"a",), (b"b",)], None, [[b"a", b"b"], [b"a", b"b"]]),
    ("all_gather", [(b"a",), (b"b",)], None, [[b"a", b"b"], [b"a", b"b"]]),
    ("reduce", [(b"a",), (b"b",)], 1, [[], [b"a", b"b"]]),
    ("gather", [(b"a",), (b"b",)], 0, [[b"a", b"b"], []]),
    ("reduce_scatter", [(b"a", b"b"), (b"c", b"d")], None, [[b"a", b"c"], [b"b", b"d"]]),
    ("all_to_all", [(b"a", b"bb"), (b"c", b"d")], None, [[b"a", b"c"], [b"bb", b"d"]]),
    ("scatter", [(b"a", b"b"), ()], 0, [[b"a"], [b"b"]]), ("barrier", [(), ()], None, [[], []])])
def test_each_rank_gets_what_a_collective_entitles_it_to(op, given, peer, arrive):
    broker = Broker(2)
    assert replies(broker, (0, call(0, *given[0], op=op, peer=peer))) == {}
    found = replies(broker, (1, call(0, *given[1], op=op, peer=peer)))
    assert [found[rank, 0] for rank in (0, 1)] == arrive


@pytest.mark.parametrize(("one", "other", "says"), [
    (call(0, b"a"), call(0, b"a", op="broadcast", peer=0), "all_reduce, and rank 1 broadcast with"),
    (call(0, b"a"), call(0, b"aa"), "rank 0 passes tensors of 1 bytes, and rank 1 of 2"),
    (call(0, b"a", op="reduce", peer=0), call(0, b"a", op="reduce", peer=1), "root 0, and rank 1"),
    (call(0, b"a", op="reduce_scatter"), call(0, b"a", b"b", op="reduce_scatter"), "one part for"),
    (send(0, 1, b"ab"), recv(0, 0, 1), "rank 0 sends 2 bytes, and rank 1 receives 1")])
def test_calls_that_do_not_match_fail_on_both_ranks(one, other, says):
    found = replies(Broker(2), (0, one), (1, other))
    assert says in found[0, 0] and found[0, 0] == found[1, 0]


def test_a_deadlock_is_one_at_once_and_nothing_else_is():
    broker = Broker(3)
    assert broker.exchange([(0, recv(0, 1, 4)), (0, wait(0)), (1, recv(0, 0, 4))])[1] == {}
    assert broker.exchange([(1, wait(0))])[1] == {}  # rank 2 may still send
    assert broker.exchange([(2, None)])[1] == {0: "recv from rank 1", 1: "recv from rank 0"}
    broker = Broker(2)
    assert broker.exchange([(0, call(0, b"a")), (0, wait(0)), (1, call(0, b"a")), (1, wait(0))]
                           )[1] == {}  # both are complete, so nobody waits
    assert broker.exchange([(0, call(1, b"a")), (0, wait(1)), (1, None)])[1] == {
        0: "all_reduce with ranks 0, 1"}


def test_a_wait_shows_the_work_done_until_then():
    broker = Broker(2)
    broker.exchange([(0, call(0, b"a", flops=5.0)), (0, wait(0, 9.0)), (1, call(0, b"a"))])
    assert [(one.started, one.finished) for one in broker.record(0)] == [(5.0, 9.0)]
    assert [(one.started, one.finished) for one in broker.record(1)] == [(0.0, None)]


@pytest.mark.parametrize("change", [
    {"op": "sum"}, {"op": None}, {"group": []}, {"group": [1]}, {"group": [0, 0]},
    {"group": [0, 2]}, {"group": [0, True]}, {"group": "01"}, {"peer": 1}, {"number": -1.5},
    {"number": True}, {"key": 1}, {"key": "x" * 300}, {"tag": None}, {"room": -1},
    {"room": 10**20}, {"flops": -1}, {"flops": float("inf")}, {"flops": 1e31}, {"do": "end"},
    {"op": "send", "peer": None}, {"op": "send", "peer": 2}, {"op": "recv", "peer": "0"},
    {"op": "broadcast"}])
def test_what_no_rank_sends_is_refused(change):
    with pytest.raises(BadMessage):
        Broker(2).receive(0, pack({**CALL, **change}, [b"a"]))


@pytest.mark.parametrize("message", [b"", b"\0\0\0\2{}", b"\0\0\0\xff{}", pack(CALL, [b"ab"])[:-1],
                                     pack(CALL, [b"ab"]) + b"c", b"\0\0\0\1["])
def test_a_damaged_message_is_refused(message):
    with pytest.raises(BadMessage):
        Broker(2).receive(0, message)


@pytest.mark.parametrize("events", [[(2, None)], [(-1, None)], [(0, None), (0, call(0, b"a"))],
                                    [(0, call(0, b"a")), (0, call(0, b"a"))], [(0, wait(3))]])
def test_nobody_speaks_for_a_rank_that_is_not_there(events):
    with pytest.raises(BadMessage):
        Broker(2).exchange(events)


def test_too_many_calls_and_too_many_bytes_fail_on_the_rank():
    broker = Broker(2, most_calls=2)
    found = replies(broker, *((0, send(number, 1, b"a")) for number in range(3)))
    assert "more than 2 times" in found[0, 2] and len(broker.calls) == 2
    broker = Broker(2, most_pending=3)
    assert "never received" in replies(broker, (0, send(0, 1, b"ab")), (0, send(1, 1, b"cd")))[0, 1]

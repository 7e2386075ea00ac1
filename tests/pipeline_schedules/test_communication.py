"""Sends and receives: both peers agree on their order."""

import pytest
from hypothesis import given

from pipeline_schedules import (
    Action,
    Message,
    add_communication,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
)
from tests.pipeline_schedules.exchanges import exchange
from tests.pipeline_schedules.test_schedules import built_in


def send(action, source, target):
    return Message("send", action, source, target)


def receive(action, source, target):
    return Message("receive", action, source, target)


F0, F1, B0, B1 = Action("F", 0), Action("F", 1), Action("B", 0), Action("B", 1)


def two_stages():
    """GPipe with two stages and two micro-batches, every message in its place."""
    return [[F0, send(F0, 0, 1), F1, send(F1, 0, 1),
             receive(B1, 1, 0), B1, receive(B0, 1, 0), B0],
            [receive(F0, 0, 1), F0, receive(F1, 0, 1), F1,
             B1, send(B1, 1, 0), B0, send(B0, 1, 0)]]


def test_every_message_stands_between_its_actions():
    assert add_communication(gpipe(2, 2)) == two_stages()


def test_in_words():
    program = add_communication(one_f_one_b(2, 2))
    assert " | ".join(map(str, program[0])) == (
        "F0 | send F0 to 1 | F1 | send F1 to 1 | receive B0 from 1 | B0 | receive B1 from 1 | B1")
    assert " | ".join(map(str, program[1])) == (
        "receive F0 from 0 | F0 | receive F1 from 0 | B0 | send B0 to 0 | F1 | B1 | send B1 to 0")


def test_one_stage_says_nothing_even_with_several_chunks():
    assert add_communication(interleaved(1, 3, 2)) == interleaved(1, 3, 2)


def test_with_two_stages_and_chunks_no_queue_carries_both_directions_or_two_chunks():
    carried = {}
    for items in add_communication(interleaved(2, 4, 2)):
        for item in items:
            if isinstance(item, Message):
                kind = (item.action.kind, item.action.chunk, item.source, item.target)
                carried.setdefault(item.queue, set()).add(kind)
    assert len(carried) == 6  # 3 boundaries between 4 virtual stages, both ways
    assert all(len(kinds) == 1 for kinds in carried.values())


def test_a_receiver_takes_messages_in_the_order_of_the_sender_even_if_it_wants_another():
    schedule = parse(["F0 F1 B1 B0", "F1 F0 B0 B1"])
    program = add_communication(schedule)
    assert [str(item) for item in program[1][:3]] == ["receive F0 from 0", "receive F1 from 0",
                                                      "F1"]
    assert exchange(program, 1, sends_wait=True) is None


def late_receives():
    """1F1B as a beginner writes it: every receive stands just before it is needed."""
    return [[F0, send(F0, 0, 1), F1, send(F1, 0, 1), receive(B0, 1, 0), B0, receive(B1, 1, 0), B1],
            [receive(F0, 0, 1), F0, B0, send(B0, 1, 0), receive(F1, 0, 1), F1, B1, send(B1, 1, 0)]]


def swapped(stage, one, two):
    program = two_stages()
    program[stage][one], program[stage][two] = program[stage][two], program[stage][one]
    return program


@pytest.mark.parametrize(("program", "wrong"), [
    (late_receives(), "deadlock"),
    (swapped(0, 0, 1), "nothing to send"),
    (swapped(1, 2, 3), "an input is missing"),
    (swapped(1, 0, 2), "wrong tensor"),
], ids=["late receives", "early send", "late receive", "other order"])
def test_what_the_next_test_relies_on_notices_a_broken_exchange(program, wrong):
    assert exchange(program, 1, sends_wait=wrong == "deadlock") == wrong


def test_with_buffered_sends_late_receives_work():
    assert exchange(late_receives(), 1, sends_wait=False) is None


@given(built_in())
def test_every_token_gets_through(case):
    _, _, chunks, schedule = case
    program = add_communication(schedule)
    for sends_wait in (False, True):
        assert exchange(program, chunks, sends_wait) is None

"""Sends and receives: both peers agree, and whoever does not is told so."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimegatron.schedules import (
    Action,
    Durations,
    Message,
    ScheduleError,
    add_communication,
    check_program,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
    program_problems,
    zb_h1,
)


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


def test_with_two_stages_and_chunks_no_channel_carries_both_directions_or_two_chunks():
    carried = {}
    for items in add_communication(interleaved(2, 4, 2)):
        for item in items:
            if isinstance(item, Message):
                kind = (item.action.kind, item.action.chunk, item.source, item.target)
                carried.setdefault(item.channel, set()).add(kind)
    assert len(carried) == 6  # 3 boundaries between 4 virtual stages, both ways
    assert all(len(kinds) == 1 for kinds in carried.values())


def test_a_receiver_takes_messages_in_the_order_of_the_sender_even_if_it_wants_another():
    schedule = parse(["F0 F1 B1 B0", "F1 F0 B0 B1"])
    program = add_communication(schedule)
    assert [str(item) for item in program[1][:3]] == ["receive F0 from 0", "receive F1 from 0",
                                                      "F1"]
    assert program_problems(program) == []


def test_the_order_follows_the_durations():
    slow_first = add_communication(one_f_one_b(2, 2), Durations(forward=[9, 1]))
    assert str(slow_first[1][2]) == "B0"  # F1 is not there yet, so it is not waited for
    assert str(add_communication(one_f_one_b(2, 2))[1][2]) == "receive F1 from 0"


def late_receives():
    """1F1B as one writes it first: every receive just before it is needed."""
    return [[F0, send(F0, 0, 1), F1, send(F1, 0, 1), receive(B0, 1, 0), B0, receive(B1, 1, 0), B1],
            [receive(F0, 0, 1), F0, B0, send(B0, 1, 0), receive(F1, 0, 1), F1, B1, send(B1, 1, 0)]]


def test_sends_that_wait_meet_in_a_deadlock_that_buffered_sends_avoid():
    assert program_problems(late_receives(), sends_wait=False) == []
    assert program_problems(late_receives()) == [
        "deadlock: stage 0 is at `send F1 to 1` (position 3) and waits for stage 1; stage 1 is at "
        "`send B0 to 0` (position 3) and waits for stage 0. Nobody gets to what the other waits "
        "for"]


def swap(program, stage, one, two):
    items = program[stage]
    items[one], items[two] = items[two], items[one]


def without(program, stage, position):
    del program[stage][position]


def replace(program, stage, position, item):
    program[stage][position] = item


BROKEN = {
    "the compute part is broken": (
        lambda p: without(p, 1, 3), "stage 1 never runs F1: micro-batch 1 does not get past it"),
    "a send is missing": (
        lambda p: without(p, 0, 3), "stage 0: `send F1 to 1` is missing; stage 1 needs it for F1"),
    "a receive is missing": (
        lambda p: without(p, 1, 2), "stage 1: `receive F1 from 0` is missing; it needs it for F1"),
    "a message twice": (
        lambda p: p[0].insert(4, send(F1, 0, 1)),
        "stage 0: `send F1 to 1` stands there 2 times; its peer expects one"),
    "a wrong peer": (
        lambda p: replace(p, 0, 1, send(F0, 0, 2)),
        "stage 0: nobody needs `send F0 to 2`; `send F0 to 1` is"),
    "a message on the wrong stage": (
        lambda p: p[0].append(receive(F0, 0, 1)),
        "stage 0: nobody needs `receive F0 from 0`; the work of this pipeline does not ask for it"),
    "a message to nobody": (
        lambda p: p[0].append(send(B0, 0, 1)),
        "stage 0: nobody needs `send B0 to 1`; the work of this pipeline does not ask for it"),
    "sent before it is computed": (
        lambda p: swap(p, 0, 0, 1),
        "stage 0: `send F0 to 1` (position 0) stands before F0 (position 1): there is nothing to "
        "send yet"),
    "received after it is needed": (
        lambda p: swap(p, 1, 2, 3),
        "stage 1: `receive F1 from 0` (position 3) stands after F1 (position 2), which needs it"),
    "the two ends of a channel disagree": (
        lambda p: (p[1].insert(0, p[1].pop(2)), p),
        "the two ends disagree (channel of forwards of chunk 0, stage 0 to stage 1): where stage 0 "
        "sends F0, stage 1 expects F1. Messages carry no names: it would compute with the wrong "
        "tensor"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_exchange_is_refused_with_its_sentence(name):
    program = two_stages()
    assert program_problems(program) == []
    breaks, sentence = BROKEN[name]
    breaks(program)
    assert sentence in program_problems(program)
    with pytest.raises(ScheduleError, match=r"^mine\.py: "):
        check_program(program, source="mine.py")


def inputs(stage, action, stages, chunks):
    """The tokens that an action uses up, written down once more."""
    own = {"F": [], "B": ["F"], "W": ["B"]}[action.kind]
    wanted = [(stage, Action(kind, action.micro_batch, action.chunk)) for kind in own]
    virtual = action.chunk * stages + stage
    before = virtual - 1 if action.kind == "F" else virtual + 1
    if action.kind != "W" and 0 <= before < stages * chunks:
        wanted.append((before % stages, Action(action.kind, action.micro_batch, before // stages)))
    return wanted


def exchange(program, chunks, sends_wait):
    """Really pass tokens through queues: None, or what went wrong."""
    queues, heads = {}, [0] * len(program)
    has = [set() for _ in program]  # the tokens that a stage holds

    def meets(message):
        items, head = program[message.target], heads[message.target]
        other = items[head] if head < len(items) else None
        return (isinstance(other, Message) and other.end == "receive"
                and other.channel == message.channel and not queues[message.channel])

    def step(stage, item):
        if isinstance(item, Message):
            queue = queues.setdefault(item.channel, deque())
            if item.end == "send":
                if sends_wait and not meets(item):
                    return "wait"
                if (stage, item.action) not in has[stage]:
                    return "nothing to send"
                queue.append((stage, item.action))
            elif not queue:
                return "wait"
            else:
                token = queue.popleft()
                if token != (item.source, item.action):
                    return "wrong tensor"
                has[stage].add(token)
            return None
        if not has[stage].issuperset(inputs(stage, item, len(program), chunks)):
            return "an input is missing"
        has[stage].add((stage, item))
        return None

    while any(head < len(items) for head, items in zip(heads, program, strict=True)):
        waiting = True
        for stage, items in enumerate(program):
            if heads[stage] == len(items):
                continue
            wrong = step(stage, items[heads[stage]])
            if wrong == "wait":
                continue
            if wrong:
                return wrong
            heads[stage] += 1
            waiting = False
        if waiting:
            return "deadlock"
    return None


@settings(max_examples=300)
@given(st.data())
def test_shuffled_exchanges_are_refused_exactly_when_tokens_do_not_get_through(data):
    stages, chunks = data.draw(st.integers(2, 3)), data.draw(st.integers(1, 2))
    micro_batches = stages * data.draw(st.integers(1, 2))
    schedule = (interleaved(stages, micro_batches, chunks) if chunks > 1 else
                data.draw(st.sampled_from([gpipe, one_f_one_b, zb_h1]))(stages, micro_batches))
    program = add_communication(schedule)
    for _ in range(data.draw(st.integers(0, 2))):
        items = data.draw(st.sampled_from(program))
        one = data.draw(st.integers(0, len(items) - 2))
        two = min(len(items) - 1, one + data.draw(st.integers(1, 3)))
        items[one], items[two] = items[two], items[one]
    for sends_wait in (False, True):
        wrong = exchange(program, chunks, sends_wait)
        assert (program_problems(program, sends_wait=sends_wait) == []) == (wrong is None), wrong

"""The interpreter visits every item once, in an order that the dependencies allow, or explains the
deadlock."""

import pytest
from hypothesis import given

from layout_estimator.measurement import receiver
from pipeline_schedules import (
    Action,
    Deadlock,
    Handler,
    Message,
    add_communication,
    gpipe,
    one_f_one_b,
    parse,
    replay,
)
from pipeline_schedules.actions import dependencies, sender
from pipeline_schedules.interpreter import replay_stage
from tests.pipeline_schedules.test_schedules import built_in


class Log(Handler):
    """Lists each visit as (stage, item), with the source that it was given."""

    def __init__(self):
        self.visits, self.sources = [], {}

    def compute(self, stage, action, source):
        self.visits.append((stage, action))
        self.sources[stage, action] = source

    def send(self, stage, message):
        self.visits.append((stage, message))

    receive = send


def log_of(program):
    log = Log()
    replay(program, log)
    return log


@given(built_in())
def test_every_item_is_visited_once_in_its_stage_s_order(case):
    _, _, _, schedule = case
    for program in (schedule, add_communication(schedule)):
        visits = log_of(program).visits
        for stage, items in enumerate(program):
            assert [item for other, item in visits if other == stage] == items


@given(built_in())
def test_an_action_comes_after_its_dependencies_and_their_messages(case):
    stages, _, chunks, schedule = case
    log = log_of(add_communication(schedule))
    place = {visit: number for number, visit in enumerate(log.visits)}
    for (stage, item), number in place.items():
        if isinstance(item, Message):
            continue
        for other, needed in dependencies(stage, item, stages, chunks):
            assert place[other, needed] < number
            if other != stage:
                assert log.sources[stage, item] == (other, needed)
                assert place[other, Message("send", needed, other, stage)] < number
                assert place[stage, Message("receive", needed, other, stage)] < number


@given(built_in())
def test_the_receiver_of_a_result_is_the_action_whose_sender_it_is(case):
    stages, _, chunks, schedule = case
    for stage, actions in enumerate(schedule):
        for action in actions:
            consumer = receiver(stage, action, stages, chunks)
            if consumer is not None:
                assert sender(*consumer, stages, chunks) == (stage, action)
            source = sender(stage, action, stages, chunks)
            if source is not None:
                assert receiver(*source, stages, chunks) == (stage, action)


def test_one_stage_alone_is_visited_as_in_the_whole_program():
    program = add_communication(one_f_one_b(3, 4))
    whole, alone = log_of(program), Log()
    replay_stage(program[1], alone, 1, 3, 1)
    assert alone.visits == [visit for visit in whole.visits if visit[0] == 1]
    assert alone.sources.items() <= whole.sources.items()


def without(program, stage, text):
    """Return the program without one stage's item."""
    return [[item for item in items if (number, str(item)) != (stage, text)]
            for number, items in enumerate(program)]


F0 = Action("F", 0)


@pytest.mark.parametrize(("program", "why"), [
    (parse(["F0 B0 F1 B1", "F1 F0 B0 B1"]),
     "deadlock: stage 0 is at B0 (position 1) and waits for B0 of stage 1; stage 1 is at F1 "
     "(position 0) and waits for F1 of stage 0. Each waits for the next, the last for the first"),
    (parse(["F0 B0", "B0 F0"]),
     "deadlock: stage 1 is at B0 (position 0) and waits for F0 of stage 1, which comes later in "
     "its own list"),
    (parse(["B0", "F0 B0"]),
     "deadlock: stage 0 is at B0 (position 0) and waits for F0 of stage 0, which never runs it"),
    (without(add_communication(gpipe(2, 1)), 0, "send F0 to 1"),
     "stage 1 is at F0 (position 1) and waits for send F0 to 1 of stage 0, which never runs it"),
    (without(add_communication(gpipe(2, 1)), 1, "receive F0 from 0"),
     "stage 1 is at F0 (position 0) and waits for receive F0 from 0 of stage 1, which never runs"),
    ([[Message("send", F0, 0, 1), F0], []],
     "stage 0 is at send F0 to 1 (position 0) and waits for F0 of stage 0, which comes later"),
], ids=["a cycle", "its own list", "a missing forward", "a missing send", "a missing receive",
        "a send before its action"])
def test_a_deadlock_names_who_waits_for_whom(program, why):
    with pytest.raises(Deadlock) as error:
        replay(program, Handler())
    assert why in str(error.value)

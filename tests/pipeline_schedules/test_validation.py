"""The validator says what is wrong with a schedule, and only then."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline_schedules import (
    Action,
    ScheduleError,
    check,
    gpipe,
    interleaved,
    one_f_one_b,
    parse,
    problems,
    simulate,
    zb_h1,
)

SOUND = ["F0 F1 B0 B1", "F0 B0 F1 B1"]

BROKEN = {
    "no stages": ([], {}, "it has no stages: write one list of actions per stage"),
    "an empty stage": (["F0 B0", ""], {}, "stage 1 does nothing: its list is empty"),
    "too few stages": (SOUND, {"stages": 4},
                       "it has lists for 2 stages, but the pipeline has 4"),
    "one stage for two": (["F0 B0"], {"stages": 2},
                          "it has lists for 1 stage, but the pipeline has 2"),
    "a forward is missing": (
        ["F0 F1 B0 B1", "F0 B0 B1"], {},
        "stage 1 never runs F1: micro-batch 1 stops there"),
    "a backward is missing": (
        ["F0 F1 B0", "F0 B0 F1 B1"], {},
        "stage 0 never runs B1: every forward needs its backward, or the gradient of micro-batch 1 "
        "is lost"),
    "a weight gradient is missing": (
        ["F0 B0 W0", "F0 B0"], {},
        "stage 1 never runs W0: where a schedule has W, every B needs one, or these weights get no "
        "gradient from micro-batch 0"),
    "a micro-batch is missing everywhere": (
        SOUND, {"micro_batches": 3},
        "no stage runs micro-batch 2 of 3 micro-batches, counted from 0"),
    "one number too high, and nobody said how many there are": (
        ["F0 F1 B0 B1", "F0 B0 F1 B9999"], {},
        "no stage runs micro-batch 2, 3, 4, ... of 10000 micro-batches, counted from 0"),
    "a chunk that nobody runs": (
        ["F0 F0.2 B0.2 B0"], {}, "no stage runs chunk 1 of 3 chunks, counted from 0"),
    "a chunk is missing": (
        ["F0 F0.1 B0.1 B0", "F0 F0.1 B0.1"], {},
        "stage 1 never runs B0: every forward needs its backward, or the gradient of micro-batch 0 "
        "is lost"),
    "an action twice": (["F0 F1 F1 B0 B1", "F0 B0 F1 B1"], {},
                        "stage 0 runs F1 2 times instead of once"),
    "a micro-batch too many": (
        SOUND, {"micro_batches": 1},
        "stage 0, position 1: F1 asks for micro-batch 1, but this is a schedule of 1 micro-batch, "
        "counted from 0"),
    "a micro-batch number too high": (
        ["F0 F1 B0 B7", "F0 B0 F1 B1"], {"micro_batches": 2},
        "stage 0, position 3: B7 asks for micro-batch 7, but this is a schedule of 2 "
        "micro-batches, counted from 0"),
    "a negative micro-batch": (
        [[Action("F", -1), Action("B", -1)]], {"micro_batches": 1},
        "stage 0, position 0: F-1 asks for micro-batch -1, but this is a schedule of 1 "
        "micro-batch, counted from 0"),
    "a chunk that no stage has": (
        ["F0.1 B0.1"], {"chunks": 1},
        "stage 0, position 0: F0.1 asks for chunk 1, but this is a schedule of 1 chunk, counted "
        "from 0"),
    "an unknown kind": (
        [[Action("F", 0), Action("Q", 0), Action("B", 0)]], {},
        "stage 0, position 1: Q0 is of kind 'Q'; the kinds are F, B, and W"),
    "a backward before its forward": (
        ["F0 B1 F1 B0", "F0 B0 F1 B1"], {},
        "stage 0 runs B1 (position 1) before F1 (position 2), which it needs: a backward pass "
        "reads the activations that its forward pass saved"),
    "a weight gradient before its backward": (
        ["F0 W0 B0"], {},
        "stage 0 runs W0 (position 1) before B0 (position 2), which it needs: a weight gradient "
        "uses the gradient that the backward computes"),
    "chunks in the wrong order on one stage": (
        ["F0.1 F0 B0.1 B0"], {},
        "stage 0 runs F0.1 (position 0) before F0 (position 1), which it needs: a chunk's input is "
        "the output of the chunk before it"),
    "backwards of chunks in the wrong order": (
        ["F0 F0.1 B0 B0.1"], {},
        "stage 0 runs B0 (position 2) before B0.1 (position 3), which it needs: a chunk's gradient "
        "comes from the chunk after it"),
    "a deadlock of two": (
        ["F0 B0 F1 B1", "F1 F0 B0 B1"], {},
        "deadlock: stage 0 is at B0 (position 1) and waits for B0 of stage 1; stage 1 is at F1 "
        "(position 0) and waits for F1 of stage 0. Each waits for the next, the last for the "
        "first"),
    "a deadlock of three": (
        ["F0 B0 F1 B1", "F0 F1 B0 B1", "F0 B0 F1 B1"], {},
        "deadlock: stage 0 is at B0 (position 1) and waits for B0 of stage 1; stage 1 is at F1 "
        "(position 1) and waits for F1 of stage 0. Each waits for the next, the last for the "
        "first"),
    "a deadlock between chunks": (
        ["F0 B0 F0.1 B0.1", "F0 F0.1 B0.1 B0"], {},
        "deadlock: stage 0 is at B0 (position 1) and waits for B0 of stage 1; stage 1 is at F0.1 "
        "(position 1) and waits for F0.1 of stage 0. Each waits for the next, the last for the "
        "first"),
    "more memory than there is": (
        gpipe(2, 3), {"max_live": 2},
        "stage 0 keeps up to 3 activations at once, but has room for 2: F2 (position 2) is the "
        "first beyond the limit. Run a backward before it"),
    "more memory than this stage has": (
        gpipe(2, 3), {"max_live": [3, 1]},
        "stage 1 keeps up to 3 activations at once, but has room for 1: F1 (position 1) is the "
        "first beyond the limit. Run a backward before it"),
    "weight gradients put off too long": (
        ["F0 B0 F1 B1 W0 W1"], {"max_live": 1},
        "stage 0 keeps up to 2 activations at once, but has room for 1: F1 (position 2) is the "
        "first beyond the limit. Run a W before it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_schedule_is_refused_with_its_sentence(name):
    schedule, meant_for, sentence = BROKEN[name]
    schedule = parse(schedule) if any(isinstance(stage, str) for stage in schedule) else schedule
    assert sentence in problems(schedule, **meant_for)
    with pytest.raises(ScheduleError) as refused:
        check(schedule, **meant_for, source="mine.py")
    assert str(refused.value).startswith("mine.py: ")
    assert sentence in str(refused.value)


def test_a_ring_of_three_is_named_in_full():
    first, other = "F0.1 F0 B0.1 B0", "F0 F0.1 B0.1 B0"
    assert problems(parse([first, other, other])) == [
        "deadlock: stage 0 is at F0.1 (position 0) and waits for F0 of stage 2; stage 2 is at F0 "
        "(position 0) and waits for F0 of stage 1; stage 1 is at F0 (position 0) and waits for F0 "
        "of stage 0. Each waits for the next, the last for the first"]


def test_the_simulator_refuses_what_the_validator_refuses():
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(parse(["F0 B0 F1 B1", "F1 F0 B0 B1"]))


def test_an_error_shows_the_first_few_problems_and_counts_the_rest():
    with pytest.raises(ScheduleError) as refused:
        check(parse(["F0 F1 F2 F3", "F0 F1 F2 F3"]))
    assert len(str(refused.value).splitlines()) == 6
    assert str(refused.value).endswith("and 3 more")


@pytest.mark.parametrize("schedule, peak", [(gpipe(4, 8), 8), (one_f_one_b(4, 8), 4),
                                            (zb_h1(4, 8), 4), (interleaved(4, 8, 2), 11)])
def test_the_limit_of_memory_is_the_peak(schedule, peak):
    assert problems(schedule, max_live=peak) == []
    assert "has room for" in problems(schedule, max_live=peak - 1)[0]


def runs_through(schedule, stages, micro_batches, chunks):
    """Another way to see whether a schedule can run: a stack of layers, tokens that move."""
    layers = stages * chunks
    reached = {k: 0 for k in range(micro_batches)}  # layers that the forward has passed
    returned = {k: layers for k in range(micro_batches)}  # layers that the backward has not
    heads = [0] * stages
    for _ in range(sum(map(len, schedule))):
        for stage, actions in enumerate(schedule):
            if heads[stage] == len(actions):
                continue
            action = actions[heads[stage]]
            k, layer = action.micro_batch, action.chunk * stages + stage
            if action.kind == "F" and reached[k] == layer:
                reached[k] += 1
            elif action.kind == "B" and reached[k] == layers and returned[k] == layer + 1:
                returned[k] -= 1
            elif action.kind == "W" and returned[k] <= layer:
                pass
            else:
                continue
            heads[stage] += 1
            break
        else:
            return False
    return True


@settings(max_examples=300)
@given(st.data())
def test_shuffled_schedules_are_refused_exactly_when_they_cannot_run(data):
    stages, chunks = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    micro_batches = stages * data.draw(st.integers(1, 2))
    makers = [lambda: interleaved(stages, micro_batches, chunks)]
    if chunks == 1:
        makers += [lambda: gpipe(stages, micro_batches), lambda: zb_h1(stages, micro_batches)]
    schedule = data.draw(st.sampled_from(makers))()
    for _ in range(data.draw(st.integers(0, 3))):
        actions = data.draw(st.sampled_from(schedule))
        one, two = (data.draw(st.integers(0, len(actions) - 1)) for _ in range(2))
        actions[one], actions[two] = actions[two], actions[one]
    assert (problems(schedule) == []) == runs_through(schedule, stages, micro_batches, chunks)

"""Schedules are judged by what they do; known wrong ones get the hint that helps."""

import time

import pytest

import pipeline_schedules as schedules
from labkit import check
from labkit.check.checks import Failed
from labkit.check.pipelines import PROPERTIES, overlaps
from pipeline_schedules import to_text

GPIPE = {
    "one at a time: who works meanwhile?": "one at a time",
    "Stages that wait for a whole batch do not overlap.": "serial forwards",
    "A ring of waiting.": "deadlock",
    "That is 1F1B already.": "1f1b",
    "Written for one number of stages.": "wrong stages",
    "Something is left out.": "incomplete",
    "Not a list.": "no schedule"}
F1B1 = {
    "Right for some sizes only.": "some sizes",
    "GPipe's memory.": "gpipe",
    "Too much is kept.": "memory",
    "A ring of waiting.": "deadlock",
    "Idle.": "bubble"}
CASES = [{"p": 4, "m": 8}, {"p": 2, "m": 3}, {"p": 1, "m": 2}, {"p": 3, "m": 1}]


def failure(*arguments, **keywords):
    with pytest.raises(Failed) as caught:
        check.schedule(*arguments, **keywords)
    return str(caught.value)


def numbers(letter, order):
    return " ".join(f"{letter}{k}" for k in order)


def gpipe(p, m):
    return [f"{numbers('F', range(m))} {numbers('B', range(m))}"] * p


def one_f_one_b(p, m):
    return to_text(schedules.one_f_one_b(p, m))


def naive(p, m):
    return [" ".join(f"F{k} B{k}" for k in range(m))] * p


def never_overlaps(p, m):
    """Every stage takes the micro-batches in the opposite order of the stage before it."""
    forth, back = range(m), range(m)[::-1]
    return [f"{numbers('F', back if stage % 2 else forth)} {numbers('B', back)}"
            for stage in range(p)]


def deadlocked(p, m):
    """The last stage begins with the last micro-batch, the others drain before they send it."""
    return [*[" ".join(f"F{k} B{k}" for k in range(m))] * (p - 1),
            " ".join(f"F{k} B{k}" for k in reversed(range(m)))]


def warmed_up_like_four(p, m):
    """Right for four stages: it warms up with 3 - stage forwards."""
    stages = []
    for stage in range(p):
        ahead = min(3 - stage, m)
        actions = [f"F{k}" for k in range(ahead)]
        for k in range(m):
            actions += [*[f"F{k + ahead}"] * (k + ahead < m), f"B{k}"]
        stages.append(actions)
    return stages


def test_gpipe_passes_with_its_backwards_in_either_order(capsys):
    check.schedule(gpipe, CASES, like="gpipe", hints=GPIPE)
    assert "gpipe: right in 4 cases" in capsys.readouterr().out
    check.schedule(lambda p, m: to_text(schedules.gpipe(p, m)), CASES, like="gpipe")
    check.schedule(gpipe, [tuple(case.values()) for case in CASES], like="gpipe")


@pytest.mark.parametrize(("name", "cases"), [
    ("1f1b", CASES), ("zb-h1", CASES), ("interleaved", [(2, 4, 2), (4, 4, 3), (3, 6, 1)])])
def test_the_built_in_ones_are_as_good_as_themselves(name, cases):
    check.schedule(lambda *of, **sizes: to_text(schedules.BUILT_IN[name](*of, *sizes.values())),
                   cases, like=name)


@pytest.mark.parametrize(("answer", "said", "hint"), [
    (naive, "naive(p=4, m=8): stage 0 runs F1 (position 2) after a backward", "who works meanwhi"),
    (never_overlaps, "the stages are idle for 55.6% of the time where a backward is twice as long "
     "as a forward", "do not overlap."),
    (deadlocked, "deadlock: stage 2 is at B0 (position 1) and waits for B0 of stage 3", "A ring"),
    (one_f_one_b, "stage 0 runs F4 (position 5) after a backward", "That is 1F1B already"),
    (lambda p, m: gpipe(4, m), "(p=2, m=3): it has lists for 4 stages, but the pipeline has 2. "
     "For <lambda>(p=4, m=8) it is right.", "one number of stages"),
    (lambda p, m: [numbers("F", range(m))] * p, "stage 0 never runs B0", "left out"),
    (lambda p, m: "F0 B0", "a schedule is a list with one entry per stage", "Not a list."),
])
def test_wrong_gpipes_are_rejected_with_their_hints(answer, said, hint):
    text = failure(answer, CASES, like="gpipe", hints=GPIPE)
    assert said in text and hint in text, text


@pytest.mark.parametrize(("answer", "said", "hint"), [
    (gpipe, "gpipe(p=4, m=8): stage 0 keeps up to 8 activations at once, but has room for 4: F4 "
     "(position 4) is the first beyond the limit", "GPipe's memory."),
    (warmed_up_like_four, "warmed_up_like_four(p=2, m=3): stage 0 keeps up to 3 activations at "
     "once", "Right for some sizes only."),
    (lambda p, m: to_text(schedules.one_f_one_b(p + 1, m)[:p]), "has room for 4", "Too much is k"),
    (naive, "naive(p=4, m=8): the stages are idle for 75.0%", "Idle."),
    (lambda p, m: one_f_one_b(p, m) if p == 4 else deadlocked(p, m), "(p=2, m=3): deadlock: "
     "stage 0 is at B0", "Right for some sizes only."),
    (deadlocked, "deadlock: stage 2 is at B0", "A ring of waiting."),
])
def test_wrong_1f1bs_are_rejected_with_their_hints(answer, said, hint):
    text = failure(answer, CASES, like="1f1b", hints=F1B1)
    assert said in text and hint in text, text


def test_one_flush_too_many_is_slower():
    """Half the micro-batches, a flush, the other half: sound, in memory, and idle twice."""
    def flushed(p, m):
        half = m // 2
        return [" ".join([a, *(f"{word[0]}{int(word[1:]) + half}" for word in a.split())])
                for a in one_f_one_b(p, half)]

    assert "Idle." in failure(flushed, [(4, 8)], like="1f1b", hints={"Idle.": "bubble"})


def test_interleaving_that_keeps_whole_batches_is_rejected():
    def in_turn(p, m, v):
        return [" ".join(f"F{k}.{c}" for c in range(v) for k in range(m)) + " " + " ".join(
            f"B{k}.{c}" for c in reversed(range(v)) for k in range(m))] * p

    said = failure(in_turn, [{"p": 2, "m": 4, "v": 2}], like="interleaved")
    assert "in_turn(p=2, m=4, v=2): stage 0 keeps up to 8" in said


def test_an_author_s_own_limits_are_per_case_or_a_formula():
    check.schedule(gpipe, [(2, 2), (4, 4)], bubble=[1 / 3, 3 / 7], live=[2, [4, 4, 4, 4]])
    check.schedule(gpipe, [(2, 2)], bubble=lambda p, m: (p - 1) / (m + p - 1))
    assert "idle for 33.3%" in failure(gpipe, [(2, 2)], bubble=[0.3])
    assert "has room for 1" in failure(gpipe, [(2, 2)], live=lambda p, m: [2, 1])
    check.schedule(naive, [(2, 2)], live=[1])
    check.schedule(naive, [(3, 3)])  # sound, and no more is asked


def test_hints_may_be_wrong_schedules_per_case():
    wrong = {"Both of them.": [["F0 F1 B0 B1", "F1 F0 B1 B0"]], "No.": [["F0"]]}
    swapped = [["F0", "F1", "B1", "B0"], ["F1", "F0", "B0", "B1"]]
    assert failure(lambda p, m: swapped, [(2, 2)], bubble=[0.1], hints=wrong).endswith("Both of "
                                                                                       "them.")
    assert failure(lambda p, m: ["F0"], [(2, 2)], hints=wrong).endswith("No.")


@pytest.mark.parametrize(("arguments", "said"), [
    ({"cases": []}, "nothing would be checked"),
    ({"cases": [(2,)]}, "a case is stages, micro-batches"),
    ({"cases": [(2, 0)]}, "a case is stages, micro-batches"),
    ({"cases": [(2, True)]}, "a case is stages, micro-batches"),
    ({"cases": [(200, 200)]}, "more than 2,000 forwards"),
    ({"cases": [(2, 2)], "like": "pipedream"}, "like='pipedream' is none of gpipe"),
    ({"cases": [(2, 3, 2)], "like": "interleaved"}, "interleaved has no (2, 3, 2)"),
    ({"cases": [(2, 3, 2)], "like": "gpipe"}, "gpipe has no (2, 3, 2)"),
    ({"cases": [(2, 2)], "like": "gpipe", "live": [2]}, "one of like= and live="),
    ({"cases": [(2, 2)], "bubble": [0.5, 0.5]}, "2 values for 1 cases"),
    ({"cases": [(2, 2)], "hints": {"Slow.": "slow"}}, "'slow' is none of no schedule"),
])
def test_a_check_that_makes_no_sense_is_an_error_of_its_author(arguments, said):
    with pytest.raises(ValueError) as refused:
        check.schedule(gpipe, **arguments)
    assert said in str(refused.value)


HOSTILE = {
    "a million actions": ["F0 B0 " * 120_000], "a million words": [["F0"] * 150_000],
    "a million stages": ["F0 B0"] * 100_000, "spaces": [" " * 900_000] * 1, "deep": [[[[]]]],
    "one long word": ["F" + "0" * 50_000] * 2, "long words": [["F" * 400_000]] * 2,
    "a number": 7, "nothing": None, "numbers": [1, 2], "nan": [float("nan")] * 2,
    "a dict": {0: "F0 B0"}, "far numbers": ["F999999 B999999"] * 2,
    "far chunks": ["F0.999999 B0.999999"] * 2, "no stage": [], "empty stages": ["", ""],
    "other digits": ["F٣ B٣"] * 2}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_hostile_or_huge_is_refused_quickly_and_in_few_words(name):
    begin = time.process_time()
    text = failure(lambda p, m: HOSTILE[name], [(2, 2)], like="gpipe", hints=GPIPE)
    assert time.process_time() - begin < 2
    assert len(text) < 2_000


@pytest.mark.parametrize(("name", "said"), [
    ("a million actions", "stage 0 is a string of 720,000 characters: far too long"),
    ("a million words", "stage 0 has 150,000 actions: far too many"),
    ("spaces", "stage 0 is a string of 900,000 characters: far too long"),
    ("a million stages", "the answer has 100,000 stages, not 2")])
def test_what_is_huge_is_refused_before_it_is_read(name, said):
    assert said in failure(lambda p, m: HOSTILE[name], [(2, 2)])


def test_an_answer_of_actions_is_told_to_give_texts():
    assert "a value of type Action cannot be checked: give str(...) of it" in failure(
        schedules.gpipe, [(2, 2)], like="gpipe")


def test_properties_of_overlap_are_what_they_say():
    serial = {"serial forwards", "serial backwards"}
    assert {"one at a time", "no overlap", *serial} <= set(PROPERTIES)
    read = schedules.parse
    assert overlaps(read(naive(3, 3))) == {"one at a time", "no overlap", *serial}
    # Stage 0 is done with F1 when stage 1 begins: only the backwards overlap.
    assert overlaps(read(never_overlaps(2, 3))) == {"serial forwards"}
    forwards = numbers("F", range(3))
    assert overlaps(read([f"{forwards} {numbers('B', range(3))}",
                          f"{forwards} {numbers('B', range(3)[::-1])}"])) == {"serial backwards"}
    assert overlaps(read(gpipe(3, 3))) == overlaps(read(gpipe(1, 3))) == set()
    assert overlaps(read(one_f_one_b(3, 1))) == set()


def zb_h1(p, m):
    return to_text(schedules.zb_h1(p, m))


def zb_h2(p, m):
    return to_text(schedules.zb_h2(p, m))


def test_ends_and_stage_time_are_two_measures_of_a_bubble():
    """ZB-H1 and ZB-H2 end at the same time, but the stages of ZB-H2 do not wait."""
    cases = [{"p": 4, "m": 8}, {"p": 2, "m": 5}]
    for make in (zb_h1, zb_h2):
        check.schedule(make, cases, ends=[27, 16], live=[7, 3])
    check.schedule(zb_h2, cases, stage_time=[24, 15])
    text = failure(zb_h1, cases, stage_time=lambda p, m: 3 * m, hints={"They wait.": "bubble"})
    assert "from its first action to its last, 27, and 24 is possible. They wait." in text
    text = failure(zb_h1, cases, ends=[26, 16])
    assert "the schedule takes 27, and 26 is possible" in text

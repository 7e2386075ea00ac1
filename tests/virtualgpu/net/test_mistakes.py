"""Ranks that do not fit together get an error that names both of them, soon, and not a timeout."""

import re

import pytest

from warmranks import run_ranks

from .mistakes import solo, tried

HERE = r"tests/virtualgpu/net/mistakes.py:\d+"


def said(mistake):
    return run_ranks(tried, 2, mistake, backend=None, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "text"), [
    ("other_collective", "rank 0 calls all_reduce SUM of 10 float32 (HERE), and rank 1 calls "
                         "broadcast from 0 of 10 float32 (HERE)"),
    ("other_size", "rank 0 calls all_reduce SUM of 10 float32 (HERE), and rank 1 calls all_reduce "
                   "SUM of 11 float32 (HERE)"),
    ("other_op", "rank 0 calls all_reduce SUM of 10 float32 (HERE), and rank 1 calls all_reduce "
                 "MAX of 10 float32 (HERE)"),
    ("other_splits", "all_to_all: rank 1 sends 4 elements to rank 0 (HERE), which expects 5 "
                     "(HERE)"),
    ("on_the_cpu", "{'No backend type associated with device type cpu'} of 15 operations"),
])
def test_a_mismatch_names_both_calls(mistake, text):
    pattern = re.escape(text).replace("HERE", f".*{HERE}")
    result = said(mistake)
    assert all(one.startswith(("CollectiveMismatch: ", "RuntimeError: ")) for one in result), result
    assert re.search(pattern, result[0]), result[0]


@pytest.mark.slow
def test_a_message_of_another_size_names_both_ends():
    sender, receiver = said("other_message")
    assert sender == "no error"
    assert re.fullmatch(
        f"CollectiveMismatch: rank 1 receives 7 float32 from rank 0 \\(.*{HERE}\\), which "
                        f"sends 10 float32 \\(.*{HERE}\\)", receiver), receiver


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "texts"), [
    ("both_receive", ["rank 0 waits for 10 float32 from rank 1 (HERE)",
                      "rank 1 waits for 10 float32 from rank 0 (HERE)"]),
    ("crossed_groups", ["rank 0 waits in all_reduce SUM of 10 float32 of ranks 0,1 (HERE)",
                        "rank 1 waits in all_reduce SUM of 10 float32 of ranks 0,1 (HERE)"]),
    ("left_alone", ["rank 0 waits in all_reduce SUM of 10 float32 of ranks 0,1 (HERE)",
                    "rank 1 has ended"]),
])
def test_a_hang_says_who_waits_where(mistake, texts):
    results = [one for one in said(mistake) if one != "no error"]
    assert len(results) == (1 if mistake == "left_alone" else 2)
    for one in results:
        assert one.startswith("Hang: deadlock: no rank can make progress: ")
        for text in texts:
            assert re.search(re.escape(text).replace("HERE", f".*{HERE}"), one), one


@pytest.mark.slow
@pytest.mark.parametrize(("program", "text"), [
    ("sends_to_the_next_stage", "sends to rank 1, which is not present"),
    ("receives_first", "from rank 1"),
    ("uneven_gather", "all_gather with parts of [1, 2, 3, 4] elements"),
    ("uneven_exchange", "all_to_all sends [1, 2, 3, 4] elements and receives [4, 2, 2, 2]"),
    ("ring", None),
])
def test_a_rank_that_stands_for_all_stops_where_they_differ(program, text):
    (results,) = run_ranks(solo, 1, program, backend=None, timeout=100)
    if text is None:
        assert results == "no error"
    else:
        assert results.startswith("Asymmetric: ") and text in results
        assert re.search(HERE, results)

"""Jobs on virtual GPUs for a diagnosis: what their timelines hold, and what limits each."""

from collections import Counter
from dataclasses import replace

import pytest

from lablib import suspects

pytestmark = pytest.mark.slow

LIMITS = {"A": "launch", "B": "compute", "C": "memory", "D": "latency", "E": "bandwidth"}


@pytest.fixture(scope="module")
def timelines():
    return {name: suspects.timeline(job) for name, job in suspects.JOBS.items()}


def shares(job, events):
    """Return the microseconds that each resource takes."""
    gpu, spent = suspects.gpu_of(job), Counter()
    for event in events:
        took = event["end"] - event["start"]
        if event["kind"] == "kernel":
            compute = event["flops"] / gpu["tflops"] / 1e6
            limited = compute > event["bytes"] / gpu["memory_gb_per_s"] / 1e3
            spent["compute" if limited else "memory"] += took
        else:
            sending = event["bytes"] / gpu["network_gb_per_s"] / 1e3
            spent["bandwidth" if sending >= took / 2 else "latency"] += took
    spent["launch"] = events[-1]["end"] - events[0]["start"] - sum(spent.values())
    return spent


def test_each_job_has_a_limit_of_its_own_and_no_close_second(timelines):
    for name, events in timelines.items():
        (first, most), (_, second) = shares(suspects.JOBS[name], events).most_common(2)
        assert first == LIMITS[name] and most > 1.2 * second, name


def test_events_are_in_order_and_do_not_overlap(timelines):
    for events in timelines.values():
        ends = [0.0, *(event["end"] for event in events)]
        assert all(event["start"] >= before - 0.002 for before, event in
                   zip(ends, events, strict=False))


def test_only_the_bandwidth_bound_job_gains_from_a_faster_network():
    slow, fast = [suspects.tokens_per_second(replace(suspects.JOBS["E"], link=link))
                  for link in ("ethernet:100gbit", "ethernet:400gbit")]
    assert fast > 1.5 * slow
    slow, fast = [suspects.tokens_per_second(replace(suspects.JOBS["D"], link=link))
                  for link in ("infiniband:8x400gbit", "infiniband:8x1600gbit")]
    assert fast == pytest.approx(slow, rel=0.01)


def test_the_figure_says_in_words_what_it_shows(timelines):
    alt = suspects.plot(timelines).alt
    last = timelines["A"][-24:]
    took = last[-1]["end"] - last[0]["start"]
    busy = sum(event["end"] - event["start"] for event in last) / took
    assert f"job A: busy {busy:.0%} of {took:,.0f} microseconds" in alt and "job E" in alt

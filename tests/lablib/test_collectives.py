"""The figures of lab 04's collectives."""

from lablib import collectives
from warmranks import CommunicationCall, RankRecord


def call(started, finished=None):
    return CommunicationCall("all_reduce", (0, 1), None, 4, started, finished)


def test_the_last_of_two_steps_is_drawn():
    """The first step's all-reduce starts when half of the FLOPs are done, the others later."""
    record = RankRecord(None, (call(50.0, 50.0), call(80.0, 90.0), call(100.0)), 100.0)
    assert "mine: 2 all-reduces, the first at 60% of the FLOPs" in collectives.timeline(
        {"mine": record}, steps=2).alt
    assert "mine: 3 all-reduces, the first at 50% of the FLOPs" in collectives.timeline(
        {"mine": record}).alt

"""The reports of failed ranks, as gloo's and NCCL's logs have them."""

import pytest

from lablib.failures import reports

TRACEBACK = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "train.py", line 7, in <module>
[rank{rank}]:     dist.all_reduce(x)
[rank{rank}]: RuntimeError: {error}
"""
WATCHDOG = ("[rank{rank}]:[E1127 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] "
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=57, OpType=ALLREDUCE, "
            "NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600029 milliseconds "
            "before timing out.\n")


def test_the_watchdog_names_the_collective_that_a_rank_waited_for():
    (report,) = reports("iteration 57\n" + WATCHDOG.format(rank=3))
    assert report["rank"] == 3 and report["error"].startswith("Watchdog caught collective")
    assert report["waits_for"] == {"number": 57, "operation": "ALLREDUCE", "elements": 1048576}


def test_a_rank_has_its_first_error_and_ranks_are_in_the_log_s_order():
    log = (TRACEBACK.format(rank=2, error="the batch has 0 samples") + WATCHDOG.format(rank=0)
           + TRACEBACK.format(rank=0, error="NCCL communicator was aborted"))
    first, second = reports(log)
    assert first == {"rank": 2, "error": "RuntimeError: the batch has 0 samples", "waits_for": None}
    assert second["rank"] == 0 and second["waits_for"]["number"] == 57


@pytest.mark.parametrize("log", [
    "", "no rank failed\n", "[rank1]: a warning without a traceback\n",
    WATCHDOG.format(rank=1).replace("SeqNum=57", "SeqNum=?"), '[rank1]:   File "train.py", line 7'])
def test_other_lines_are_no_reports(log):
    assert reports(log) == []

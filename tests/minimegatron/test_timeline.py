"""A recorded step: one clock for all ranks, a trace that Perfetto reads, the figure's timeline."""

import json
import time
from itertools import pairwise

import pytest
import torch.distributed as dist

from job_monitor import timeline as report_timeline
from minimegatron.report import timeline
from pipeline_schedules import Action, ScheduleError, gpipe
from warmranks import run_ranks

RANKS = [{"rank": rank, "pp": rank // 2, "dp": rank % 2, "tp": 0, "sections": [
    ("batch-generator", 10.0, 10.5, None),
    ("forward-compute", 11.0 + rank, 12.0 + rank, ("F", 0, 0)),
    ("backward-compute", 20.0 - rank, 21.0 - rank, ("B", 0, 0))]} for rank in range(4)]


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / timeline.FILE
    timeline.write(path, timeline.perfetto(RANKS))
    return path


def test_the_trace_has_a_process_per_rank_and_microseconds_from_zero(recorded):
    trace = json.loads(recorded.read_text())
    names = [event["args"]["name"] for event in trace["traceEvents"]
             if event["name"] == "process_name"]
    assert names[3] == "rank 3: stage 1, dp 1, tp 0" and len(names) == 4
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    first, forward = spans[0], spans[1]
    assert (first["name"], first["ts"], first["dur"]) == ("batch-generator", 0, 5e5)
    assert (forward["name"], forward["cat"], forward["ts"]) == ("F0", "forward-compute", 1e6)


@pytest.mark.parametrize("replica, start", [(0, 3000), (1, 4000)])
def test_a_replica_s_pipeline_is_read_back_in_milliseconds(recorded, replica, start):
    content = timeline.read(recorded, dp=replica)
    assert [stage[0].start for stage in content.spans.values()] == [start - 2000, start]
    assert [stage[1].kind for stage in content.spans.values()] == ["B", "B"]


@pytest.mark.parametrize("text, said", [
    ("{", "contains no timeline"), ("[]", "contains no timeline"),
    ('{"traceEvents": []}', "no stage has any spans"),
    ('{"traceEvents": [{"args": {"action": ["F", 0, 0], "dp": 0, "tp": 0, "pp": 0}}]}', "'ts'"),
])
def test_what_is_no_timeline_is_refused(tmp_path, text, said):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ScheduleError, match=r"x\.json") as refused:
        timeline.read(path)
    assert said in str(refused.value)


def test_a_replica_that_is_not_there_is_refused(recorded):
    with pytest.raises(ScheduleError, match="no timeline of dp 7"):
        timeline.read(recorded, dp=7)


def test_a_missing_file_says_which_flag_writes_it(tmp_path):
    with pytest.raises(ScheduleError, match="--timeline FOLDER writes"):
        timeline.read(tmp_path / "x.json")


@pytest.mark.slow
def test_clocks_that_differ_by_minutes_are_aligned_to_milliseconds():
    assert run_ranks(own_offset, 3) == pytest.approx([0, -1000, -2000], abs=5e-3)


def own_offset() -> float:
    """Return this rank's measured clock offset; rank r's clock is 1000 r seconds ahead."""
    rank = dist.get_rank()
    return timeline.clock_offset(rank, 3, lambda: time.perf_counter() + 1000 * rank)


@pytest.mark.slow
def test_a_pipeline_s_step_is_recorded_by_all_ranks(train, tmp_path):
    """Two stages, two replicas: the trace has every action once, in the schedule's order."""
    run = train("--global-batch-size 16 --train-iters 2 --eval-iters 0 "
                   "--pipeline-model-parallel-size 2 --schedule gpipe "
                   f"--timeline {tmp_path}/t --timeline-iteration 2", ranks=4)
    assert f"timeline of iteration 2 written to {tmp_path}/t/timeline.json" in run.out
    for replica in (0, 1):
        stages = timeline.read(tmp_path / "t" / timeline.FILE, dp=replica).spans
        for stage, spans in stages.items():
            done = [str(Action(*span[:3])) for span in spans]
            assert done == [str(action) for action in gpipe(2, 4)[stage]]
            # What a stage needs has ended elsewhere before, on the aligned clock (to 5 ms).
            if stage == 1:
                assert all(mine.end > theirs.end - 5 for mine, theirs in zip(
                    spans[:4], stages[0][:4], strict=True))
    names = {event["name"] for event in json.loads(
        (tmp_path / "t" / timeline.FILE).read_text())["traceEvents"]}
    assert {"batch-generator", "forward-recv", "backward-recv", "optimizer"} <= names
    assert (tmp_path / "t" / "timeline.svg").read_text().startswith("<?xml")
    lanes = report_timeline.read(tmp_path / "t" / timeline.FILE)  # as `lab report` draws them
    assert [(one.rank, one.stage, one.replica) for one in lanes] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    end = max(one.spans[-1].end for one in lanes)
    for one in lanes:
        assert [span.text for span in one.spans if span.kind in ("forward", "backward")] == [
            str(action) for action in gpipe(2, 4)[one.stage]]
        assert all(before.end <= after.start + 1e-6 for before, after in pairwise(one.spans))
        assert sum(one.shares(end).values()) == pytest.approx(1)

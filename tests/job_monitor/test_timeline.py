"""A recorded step becomes lanes whose spans say who computes, communicates, and waits."""

import pytest

from job_monitor import page, timeline
from pipeline_schedules import traces
from tests.job_monitor import samples


def rank(number, stage, replica, *sections):
    return {"rank": number, "pp": stage, "dp": replica, "tp": 0, "sections": sections}


# Two stages and two replicas. Stage 1 waits 20 ms for F0 and 5 ms more for its transfer; replica 0
# reaches the all-reduce 10 ms before replica 1.
RANKS = [
    *[rank(replica, 0, replica, ("batch-generator", 0.0, 0.001, None),
           ("forward-backward", 0.001, 0.08, None), ("forward-compute", 0.001, 0.021, ("F", 0, 0)),
           ("backward-compute", 0.06, 0.08, ("B", 0, 0)), ("optimizer", 0.1, 0.11, None),
           ("optimizer-clip-main-grad", 0.1, 0.105, None)) for replica in range(2)],
    *[rank(2 + replica, 1, replica, ("forward-recv", 0.001, 0.026, None),
           ("forward-compute", 0.026, 0.036, ("F", 0, 0)),
           ("backward-compute", 0.036, 0.056 + 0.01 * replica, ("B", 0, 0)),
           ("backward-params-all-reduce", 0.056 + 0.01 * replica, 0.1, None))
      for replica in range(2)]]


@pytest.fixture
def lanes(tmp_path):
    traces.write(tmp_path / timeline.FILE, traces.perfetto(RANKS))
    return timeline.read(tmp_path / timeline.FILE)


def test_waiting_ends_when_the_sender_has_computed_and_all_ranks_are_there(lanes):
    assert [(one.rank, one.stage, one.replica) for one in lanes] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)]
    spans = [(span.kind, round(span.start, 6), round(span.end, 6)) for span in lanes[2].spans]
    assert spans == [
        ("idle", 1, 21), ("communication", 21, 26), ("forward", 26, 36), ("backward", 36, 56),
        ("idle", 56, 66), ("communication", 66, 100)]
    assert lanes[0].spans[1].text == "F0" and lanes[0].spans[-1].kind == "optimizer"
    shares = lanes[2].shares(110)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["communication"] == pytest.approx(39 / 110)
    assert shares["idle"] == pytest.approx((1 + 20 + 10 + 10) / 110)


def test_the_page_draws_every_rank_and_can_show_one_node(lanes, tmp_path):
    files = [samples.rank_file(number, state="done") for number in range(4)]
    shown = samples.take(tmp_path, samples.job("COMPLETED"), samples.lines(until=20), files)
    text = page.render_page(shown, "", [], lanes, "", "2026-01-01 00:00")
    assert text.count('class="lane on1"') == text.count('class="lane on2"') == 2
    assert text.count('<i class="forward" style="left:') == 4
    assert text.count('name="zoom"') == len(page.ZOOMS) and text.count('name="node"') == 3
    assert ".timeline:has(#node2:checked) .lane:not(.on2) { display: none; }" in text
    assert 'title="F0: forward, 20.000 ms from 1.000 ms"' in text


def test_a_long_timeline_draws_the_first_ranks_and_counts_all(lanes, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "MAX_SPANS", len(lanes[0].spans))
    shown = samples.take(tmp_path, samples.job("COMPLETED"), samples.lines(until=20), [])
    text = page.render_page(shown, "", [], lanes, "", "2026-01-01 00:00")
    assert text.count('class="lane on0"') == 1 and 'name="node"' not in text
    assert "The first 1 of 4 ranks are drawn" in text


@pytest.mark.parametrize(("text", "why"), [
    ("{", "Expecting"), ("[]", "not a trace"), ('{"traceEvents": 3}', "not a trace"),
    ('{"traceEvents": []}', "no spans"), ('{"traceEvents": [{"ph": "X"}]}', "not a trace"),
    ('{"traceEvents": [{"ph": "X", "args": {"pp": 0, "dp": 0, "tp": 0}, "ts": 0, "dur": NaN, '
     '"pid": 0, "name": "F0", "cat": "x"}]}', "'F0' has no time")])
def test_what_is_no_trace_is_refused(tmp_path, text, why):
    path = tmp_path / timeline.FILE
    path.write_text(text)
    with pytest.raises(ValueError, match=why):
        timeline.read(path)

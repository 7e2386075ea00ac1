"""Late penalties: never more than the score, never less for coming later, the clocks aside."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import TraitError
from traitlets.config import Config

from grader.course import Submission, receipts
from grader.course.receipts import Receipt
from grader.course.received import receipt_time
from grader.course.times import parse_time
from grader.gradebook.late import LatePenalty, seconds_late, set_due
from grader.gradebook.records import entry_of, gradebook
from tests.grader.collect.conftest import NAME, put
from tests.grader.conftest import extend

SECONDS = st.floats(0, 1e8)
PLUGINS = st.builds(lambda **settings: LatePenalty(config=Config(LatePenalty=settings)),
                    grace_minutes=st.floats(0, 1e4), percent=st.floats(0, 100),
                    per=st.sampled_from(["day", "hour"]), most=st.floats(0, 100),
                    zero_after_days=st.none() | st.floats(0, 100),
                    penalty_method=st.sampled_from(["none", "zero"]))


@given(PLUGINS, st.floats(0, 1e6), SECONDS, SECONDS)
def test_the_later_the_more_is_lost_and_never_more_than_all(plugin, score, one, two):
    early, late = sorted((one, two))
    lost = [plugin.late_submission_penalty("ada", score, time) or 0.0 for time in (early, late)]
    assert 0 <= lost[0] <= lost[1] <= score


@given(PLUGINS, st.floats(0, 1e6))
def test_nothing_is_lost_in_time_and_in_the_grace(plugin, score):
    assert plugin.late_submission_penalty("ada", score, 0.0) is None
    assert plugin.late_submission_penalty("ada", score, plugin.grace_minutes * 60) is None


@pytest.mark.parametrize("seconds, lost", [
    (0, None), (600, None), (601, 1.0), (86_400, 1.0), (86_401, 2.0), (3 * 86_400, 3.0),
    (4 * 86_400, 3.5), (7 * 86_400, 3.5), (7 * 86_400 + 1, 10.0)])
def test_a_policy_that_instructors_have(seconds, lost):
    plugin = LatePenalty(grace_minutes=10, percent=10, most=35, zero_after_days=7)
    assert plugin.late_submission_penalty("ada", 10.0, seconds) == (lost and pytest.approx(lost))


def test_hours_and_nbgraders_own_setting():
    assert LatePenalty(percent=5, per="hour").late_submission_penalty("ada", 10, 3601) == 1
    assert LatePenalty(penalty_method="zero").late_submission_penalty("ada", 10, 1) == 10
    assert LatePenalty().late_submission_penalty("ada", 10, 1e9) is None


@pytest.mark.parametrize("wrong", [{"percent": -1}, {"percent": 101}, {"per": "week"},
                                   {"most": 120}, {"grace_minutes": -5}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(TraitError):
        LatePenalty(**wrong)


@given(st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2030, 1, 1)),
       st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
       st.integers(0, 10**6))
def test_a_due_date_in_any_zone_is_the_instant_that_was_meant(when, zone, seconds):
    place = zoneinfo.ZoneInfo(zone)
    assume(when.replace(tzinfo=place).utcoffset()
           == when.replace(tzinfo=place, fold=1).utcoffset())
    name = zone if zone != "UTC" else "UTC"
    due = parse_time(f"{when.replace(microsecond=0)} {name}", "--due")
    local = (due + datetime.timedelta(seconds=seconds)).astimezone(place)
    again = parse_time(local.isoformat(), "--received")
    assert (again - due).total_seconds() == seconds


def test_the_night_of_the_clocks_is_as_long_as_it_is():
    due = parse_time("2026-10-24 23:59 Europe/Berlin", "--due")
    late = parse_time("2026-10-25 23:59 Europe/Berlin", "--received")  # 25 hours later
    assert LatePenalty(percent=10).share_lost((late - due).total_seconds()) == pytest.approx(0.2)


def test_the_gradebook_goes_by_the_receipt_and_extensions_count(course, answer):
    path = course.notebook("submitted", NAME, "ada")
    put(path.parent, {path.name: answer(), "timestamp.txt": b"2020-01-01 00:00:00 UTC"})
    receipts.add(course, Receipt("ada", NAME, course.digest(NAME, "ada"),
                                 "2026-01-31T12:00:00+00:00", "test"))
    set_due(course, NAME, parse_time("2026-01-31 11:00 +01:00", "--due"))
    with gradebook(course) as book:
        submission = Submission(course, NAME, "ada")
        entry_of(submission, book, timestamp=receipt_time(submission))
        assert book.find_submission(NAME, "ada").total_seconds_late == 2 * 3600
    extend(course, NAME, "ada", datetime.timedelta(hours=1.5))
    with gradebook(course) as book:
        assert book.find_submission(NAME, "ada").total_seconds_late == 1800
    set_due(course, NAME, None)  # the extension stays
    with gradebook(course) as book:
        assert seconds_late(book.find_submission(NAME, "ada")) == 0
    extend(course, NAME, "ada", datetime.timedelta(0))
    with gradebook(course) as book:
        assert book.find_submission(NAME, "ada").total_seconds_late == 0


def test_a_forged_stamp_beside_a_notebook_put_there_by_hand_does_not_help(course, answer):
    path = course.notebook("submitted", NAME, "ada")
    put(path.parent, {path.name: answer(), "timestamp.txt": b"2020-01-01 00:00:00 UTC"})
    assert receipt_time(Submission(course, NAME, "ada")).year >= 2026


def test_the_courses_settings_reach_the_plugin(course):
    with course.config_file.open("a") as file:
        file.write("c.LatePenalty.percent = 10\n")
    step = AssignLatePenalties(config=course.settings())
    step.init_plugin()
    assert step.plugin_inst.late_submission_penalty("ada", 5.0, 60.0) == 0.5


@pytest.mark.slow
def test_nbgraders_own_autograde_goes_by_the_receipt_too(course, take, tmp_path, answer):
    with course.config_file.open("a") as file:
        file.write("c.LatePenalty.percent = 10\n")
    set_due(course, NAME, parse_time("2026-01-31 12:00 UTC", "--due"))
    take(put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer()}),
         received=parse_time("2026-02-01 18:00 UTC", "--received"))
    course.notebook("submitted", NAME, "ada").with_name("timestamp.txt").write_text(
        "2020-01-01 00:00:00 UTC")  # put back by hand
    from tests.grader.conftest import run

    done = run(course, "autograde", NAME, "--student", "ada", "--force", program="nbgrader")
    assert done.returncode == 0, done.stderr
    with gradebook(course) as book:
        submission = book.find_submission(NAME, "ada")
        assert submission.timestamp == datetime.datetime(2026, 2, 1, 18)
        assert submission.late_submission_penalty == pytest.approx(0.2 * submission.score) != 0

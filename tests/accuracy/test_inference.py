"""Published times per output token: the table and the errors that reports state are current."""

import json
from statistics import fmean

import pytest

from benchmarks import inference
from virtualgpu.core.accuracy import DECODING

ROWS = json.loads((inference.RESULTS / "inference.json").read_text())


def test_the_table_is_that_of_the_published_rows():
    published = [{name: value for name, value in row.items() if name not in
                  ("predicted", "launches")} for row in ROWS]
    assert published == inference.DATA["rows"]
    assert inference.report(ROWS) == (inference.RESULTS / "inference.md").read_text()
    assert {row["source"] for row in ROWS} == set(inference.DATA["sources"])


def test_the_error_that_reports_state_is_that_of_the_test_rows():
    errors = {}
    for row in ROWS:
        if row["use"] == "test" and row["mode"] == "eager":
            errors.setdefault(row["gpu"], []).append(abs(inference.error(row)))
    assert {card: (round(found.error, 3), found.runs) for card, found in DECODING.items()} == {
        card: (round(fmean(found), 3), len(found)) for card, found in errors.items()}


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS[:1], ids=lambda row: row["model"])
def test_a_row_is_predicted_as_in_the_table(row):
    assert inference.predict(row) == pytest.approx(row["predicted"], rel=1e-3)

"""Settings of an instructor."""

from __future__ import annotations

import pytest
from traitlets.config import Config

from grader.run.settings import settings_of
from labcore.errors import LabError


def test_settings_name_what_is_wrong_with_them():
    assert settings_of(Config({"Grading": {"memory_mb": 100}})).limits().memory == 100_000_000
    for name, value, says in (("memory_m", 1, "memory_mb"), ("workers", -1, "0 for one per core"),
                              ("seconds_per_cell", 0, "more than 0")):
        with pytest.raises(LabError, match=says):
            settings_of(Config({"Grading": {name: value}}))

"""Configuration files of runs."""

import pytest

from lab.submit import conf, layout


@pytest.fixture
def write(tmp_path):
    """Write a file with these keys, some of them changed, and return its path."""

    def written(values, **changed):
        path = tmp_path / "run.toml"
        lines = (f"{key} = {value}\n" for key, value in (values | changed).items() if value)
        path.write_text("".join(lines))
        return path

    return written


@pytest.fixture
def place(write):
    """Return the layout of such a file."""
    return lambda values, **changed: layout.lay_out(conf.read(write(values, **changed)))

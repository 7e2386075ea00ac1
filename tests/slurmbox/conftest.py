"""Calls of the `lab` command in this process."""

import pytest

from lab import cli


@pytest.fixture
def call(capsys):
    """Run the command with an expected exit code; return its output, or its errors if it fails."""

    def run(*words, code=0):
        capsys.readouterr()
        assert cli.main([*words]) == code
        said = capsys.readouterr()
        return said.err if code else said.out

    return run

"""The class of the tests for collecting."""

from tests.grader.collect.conftest import PEOPLE, command, template

__all__ = ["PEOPLE", "command", "template"]

"""Where students' code runs: apart from the machine, the course and one another.

`choose()` gives the back-end that holds here, or refuses; `self_test` tries to break out of it.
"""

from grader.sandbox.choice import choose
from grader.sandbox.interface import Backend, Limits, Unavailable
from grader.sandbox.mounts import HOME, python
from grader.sandbox.running import Running
from grader.sandbox.selftest import self_test

__all__ = ["HOME", "Backend", "Limits", "Running", "Unavailable", "choose", "python",
           "self_test"]

"""A back-end without any walls, for tests of what is on either side of them."""

from __future__ import annotations

from grader.sandbox.unisolated import Unisolated


class Plain(Unisolated):
    """Runs the command as a child, in a folder of its own below `folder`."""

    name = "plain"

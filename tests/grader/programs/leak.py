"""`lab` on a machine where the sandbox does not hold."""

from __future__ import annotations


def main() -> int:
    from grader.sandbox import interface, selftest
    from lab.cli import main

    def torn(*_: object) -> None:
        raise interface.Unavailable("the network got out")

    selftest.self_test = torn
    return main()

"""`lab`, with Ctrl-C inside the last statement that enters a grade."""

from __future__ import annotations

import os
import signal


def main() -> int:
    from sqlalchemy.engine.default import DefaultDialect

    from lab.cli import main

    execute = DefaultDialect.do_execute

    def interrupted(dialect, cursor, statement, *rest) -> None:
        if statement.startswith("INSERT INTO lab_entered"):
            os.kill(os.getpid(), signal.SIGINT)
        execute(dialect, cursor, statement, *rest)

    DefaultDialect.do_execute = interrupted
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()

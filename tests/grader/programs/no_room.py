"""`lab` in a process whose files may have 10 kB."""

from __future__ import annotations

import resource


def main() -> int:
    import grader.config  # noqa: F401  what it writes to a cache of bytecode may be larger
    from lab.cli import main

    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    return main()

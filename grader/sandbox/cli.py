"""`lab install-sandbox`: install the requirements of isolated grading, and test them."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from grader.commands import add_command

PACKAGES = ("bubblewrap",)
EXAMPLES = """examples:
  lab install-sandbox             install bubblewrap, where nothing suitable is there
  lab install-sandbox --test      and try to break out of it, as before each grading

docs/grading-safely.md says what is isolated, and what to do inside Docker."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    install = add_command(
        subparsers, "install-sandbox", "install the sandbox that students' code runs in", EXAMPLES)
    install.add_argument("--test", action="store_true", help="also try to break out of it")
    install.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from lab.start import notify

    ensure(notify)
    if arguments.test:
        from grader.course import default_root
        from grader.sandbox.choice import choose
        from grader.sandbox.selftest import self_test

        begun, root = time.monotonic(), default_root()
        backend = choose()
        self_test(backend, root if root.is_dir() else None)
        print(f"{backend.name} is safe: every attempt to break out failed "
              f"({time.monotonic() - begun:.1f} s)")
    return 0


def ensure(notify) -> None:
    """Install bubblewrap if it is missing. Raises Unavailable if there is no back end afterwards.

    It does not check that the back end is safe: `choose` and `self_test` do.
    """
    from grader.sandbox.interface import Unavailable
    from slurmbox.install import install_command, install_packages

    if _is_installed("bwrap") or install_packages(PACKAGES, notify) or _is_installed("podman"):
        return
    raise Unavailable("grading needs bubblewrap, to isolate students' code: "
                      f"{install_command(PACKAGES)} (or dnf, zypper, pacman)")


def _is_installed(program: str) -> bool:
    return bool(shutil.which(program)) or Path("/usr/bin", program).exists()

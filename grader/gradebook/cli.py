"""`lab gradebook`: list the backups, restore one, or accept the current gradebook."""

from __future__ import annotations

import argparse
from pathlib import Path

from grader.commands import add_command, open_course

EXAMPLES = """examples:
  lab gradebook backups                  list the backups
  lab gradebook restore                  the newest backup, after the gradebook was lost
  lab gradebook restore --from copy.db   a copy of your own
  lab gradebook accept                   keep the gradebook that is there, as it is"""
MOST_SHOWN = 20


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter, "epilog": EXAMPLES}
    parser = add_command(subparsers, "gradebook", "list and restore backups of the gradebook",
                         EXAMPLES)
    steps = parser.add_subparsers(metavar="STEP", required=True)
    steps.add_parser("backups", help="list the backups", **raw).set_defaults(run=run_backups)
    step = steps.add_parser("restore", help="restore the gradebook from a backup", **raw)
    step.add_argument("--from", dest="source", type=Path, metavar="FILE",
                      help="a copy of gradebook.db (the newest backup)")
    step.set_defaults(run=run_restore)
    steps.add_parser("accept", help="keep the gradebook as it is, even if grades are missing "
                     "from it", **raw).set_defaults(run=run_accept)


def run_backups(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from grader.gradebook import backups, restore

    path = restore.path_of(open_course())
    table = Table("time (UTC)", "students", "grades", "by hand", "MB", "file")
    copies = backups.backups_of(path)
    for backup in copies:
        table.add_row(f"{backup.time:%Y-%m-%d %H:%M:%S}", str(backup.counts.students),
                      str(backup.counts.grades), str(backup.counts.by_hand),
                      f"{backup.path.stat().st_size / 1e6:.1f}", backup.path.name)
    if copies:
        Console().print(table)
    for copy in backups.damaged_backups(path):
        print(f"damaged, cannot be restored: {copy}")
    print(f"{len(copies)} backups in {path.parent / backups.FOLDER}/")
    return 0


def run_restore(arguments: argparse.Namespace) -> int:
    from grader.gradebook.restore import restore

    done = restore(open_course(), arguments.source)
    for copy in done.skipped:
        print(f"damaged, skipped: {copy}")
    print(f"restored {done.backup.path}, from {done.backup.time:%Y-%m-%d %H:%M:%S} UTC: "
          f"{done.backup.counts}")
    if done.aside:
        print("the file that was there is kept as " + ", ".join(map(str, done.aside)))
    _report_missing(done.again, "the backup lacks")
    print("scores entered in formgrader and changes to the roster after that time are not in it")
    return 0


def _report_missing(again: list[tuple[str, str]], what: str) -> None:
    if not again:
        print("attempts/ has no grade that it lacks")
        return
    names = [f"{student}, {lab}" for lab, student in again]
    more = [f"and {len(names) - MOST_SHOWN} more"] * (len(names) > MOST_SHOWN)
    print(f"{what} {len(names)} of the grades in attempts/; `lab grade --all` enters them again:")
    for line in names[:MOST_SHOWN] + more:
        print(f"  {line}")


def run_accept(arguments: argparse.Namespace) -> int:
    from grader.gradebook.restore import accept

    counts, again = accept(open_course())
    print(f"the gradebook is kept as it is: {counts}" if counts else
          "there is no gradebook; the next command makes a new one")
    _report_missing(again, "it lacks")
    return 0

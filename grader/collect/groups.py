"""`lab groups`: who submits together."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grader.commands import add_command, open_course, require_lab
from labcore.terminal import visible

EXAMPLES = """examples:
  lab groups import groups.csv                     with columns student, group; for all labs
  lab groups import groups.csv --lab 20_project    for this lab alone
  lab groups import participants.csv               Moodle's participants, with their groups
  lab groups list
  lab groups remove --lab 20_project

What one member submits is the group's: every member gets its score in grades.csv and in exports,
and a feedback page. `lab score` and `lab roster remove` still apply to one member; `lab extend`,
`lab attempt`, and `lab aside` apply to the group. Groups of all labs submit together in contests,
too."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, "groups", "let students submit in groups", EXAMPLES)
    steps = parser.add_subparsers(metavar="STEP", required=True)
    step = steps.add_parser("import", help="read who is in which group", epilog=EXAMPLES,
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    step.add_argument("file", type=Path, metavar="groups.csv")
    step.add_argument("--lab", metavar="LAB", help="(default: every lab without its own groups)")
    step.set_defaults(run=run_import)
    step = steps.add_parser("list", help="show the groups")
    step.set_defaults(run=run_list)
    step = steps.add_parser("remove", help="let everybody submit alone again")
    step.add_argument("--lab", metavar="LAB", help="(default: the groups of all other labs)")
    step.set_defaults(run=run_import, file=None)


def run_import(arguments: argparse.Namespace) -> int:
    """Replace the groups with those of a file, or remove them where there is no file."""
    from grader.course import Submission, groups, receipts
    from grader.course.folder import COLLECTING
    from grader.course.roster import Roster, people
    from grader.gradebook.records import gradebook
    from grader.gradebook.ungraded import remove_page
    from grader.report.grades import save

    course = open_course()
    if arguments.lab:
        require_lab(course, arguments.lab)
    lab = arguments.lab or groups.ALL
    with gradebook(course) as book:
        roster = Roster(people(book))
    new = groups.read_file(arguments.file, roster) if arguments.file else {}
    with course.locked("lab groups", COLLECTING), course.entering():
        own = set(groups.all_groups(course)) - {lab}
        labs = [lab] if arguments.lab else [one for one in course.labs() if one not in own]
        submitters = {student for one in labs for student in course.students(one)}
        submitters |= {student for student, one in receipts.read(course) if one in labs}
        shared = {(one, student): owner for one in labs for student in roster.ids
                  if (owner := groups.owner_of(course, one, student)) != student
                  and owner in submitters}
        result = groups.replace_groups(course, lab, new, submitters)
        left = {(one, student): owner for (one, student), owner in shared.items()
                if groups.owner_of(course, one, student) != owner}
        for one, student in left:
            remove_page(Submission(course, one, student))
    for student, owner in sorted({(student, owner) for (_, student), owner in left.items()}):
        print(visible(f"note: {student} has left {owner}'s group, and its grade and its feedback "
                      f"page no longer count for {student}; `lab score` enters a score"),
              file=sys.stderr)
    alone = sorted(set(roster.ids) - {one for group in result for one in group.members})
    if result and alone:
        print(visible(f"note: in no group: {', '.join(alone)}"), file=sys.stderr)
    count = sum(len(one.members) for one in result)
    print(f"{len(result)} groups with {count} students" if result else "no groups")
    save(course)
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    from grader.course import groups

    for lab, found in sorted(groups.all_groups(open_course()).items()):
        for one in found:
            print(visible(f"{'all labs' if lab == groups.ALL else lab}: {one.name}: "
                          f"{', '.join(one.members)}"))
    return 0

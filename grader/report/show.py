"""Show the progress of a batch, and a table at its end."""

from __future__ import annotations

import statistics

from grader.gradebook.decisions import EXCUSED
from grader.report.grades import NEEDS_REVIEW
from labcore.terminal import visible


class progress:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        # Without auto_refresh it has no thread, so that workers can be forks of this process.
        self.bar = Progress(console=Console(stderr=True), transient=True, auto_refresh=False,
                            disable=not Console(stderr=True).is_terminal)
        self.task = self.bar.add_task("grading", total=total)

    def __enter__(self):
        from rich.markup import escape

        self.bar.__enter__()
        return lambda outcome: self.bar.update(
            self.task, advance=1, refresh=True, description=escape(
                visible(f"{outcome.lab} {outcome.student}")))

    def __exit__(self, *error) -> None:
        self.bar.__exit__(*error)


def show(console, outcomes, rows, seconds: float) -> None:
    """Print the table, followed by ungraded submissions and notes.

    Args:
        console: where to print.
        outcomes: the batch's outcomes.
        rows: the rows of grades.csv.
        seconds: elapsed time.
    """
    from rich.markup import escape

    console.print(table(outcomes, rows))
    excused = {(row.lab, row.student) for row in rows if row.state == EXCUSED}
    for one in outcomes:
        who = f"{one.student}, {one.lab}"
        ungraded = one.record.state == "ungraded" and (one.lab, one.student) not in excused
        lines = [f"ungraded: {who}: {one.record.reason}"] * ungraded
        lines += [f"note: {who}: {note}" for note in one.record.notes]
        for line in lines:
            console.print(escape(visible(line)), soft_wrap=True, highlight=False)
    tried = {(one.lab, one.student) for one in outcomes}
    if waiting := sum((row.lab, row.student) in tried and NEEDS_REVIEW in row.reason
                      for row in rows):
        console.print(f"to grade by hand: {waiting} graded submission{'s' * (waiting != 1)} with "
                      "an incomplete score")
    kept = sum(not one.again and one.record.state == "graded" for one in outcomes)
    final = [one for one in outcomes if not one.again and one.record.attempt
             and one.record.state == "ungraded"]
    console.print(f"{len(outcomes)} submission{'s' * (len(outcomes) != 1)} in {seconds:.1f} s"
                  + (f", {kept} of them were graded already" if kept else ""))
    for lab in sorted({one.lab for one in final}):
        console.print(f"{sum(one.lab == lab for one in final)} of {lab} failed in the same way "
                      f"before and were not tried again: `lab regrade {lab} --ungraded` does")


def table(outcomes, rows):
    """Return a table with one line for every lab of the batch.

    Args:
        outcomes: the batch's outcomes.
        rows: the rows of grades.csv.
    """
    from rich.table import Table

    result = Table("lab")
    for name in ("graded", "ungraded", "mean", "of", "seconds"):
        result.add_column(name, justify="right")
    by_name = {(row.lab, row.student): row for row in rows}
    for lab in dict.fromkeys(outcome.lab for outcome in outcomes):
        lab_outcomes = [outcome for outcome in outcomes if outcome.lab == lab]
        lab_rows = [by_name[lab, one.student] for one in lab_outcomes]
        scores = [row.score for row in lab_rows if row.score is not None]
        waiting = sum(row.state == "ungraded" for row in lab_rows)
        result.add_row(lab, str(len(scores)), str(waiting),
                       f"{statistics.fmean(scores):.1f}" if scores else "-",
                       f"{lab_rows[0].max_score:g}",
                       f"{sum(one.seconds for one in lab_outcomes):.1f}")
    return result

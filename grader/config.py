"""nbgrader's settings for this course; a course's nbgrader_config.py calls `configure`.

So `nbgrader autograde`, `nbgrader generate_feedback`, `nbgrader export` and formgrader's buttons
take the same steps as `lab grade`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbgrader import preprocessors as stock
from traitlets.config import Config

from grader.feedback.page import EmbedImages, FeedbackPage, HideTests, LimitOutputSize, MarkUnscored
from grader.gradebook.late import AssignPenalties, LatePenalty
from grader.gradebook.notices import Notices
from grader.gradebook.pending import MarkPending
from grader.gradebook.watch import watch
from grader.nbgrader_plugin import formgrader_pages
from grader.nbgrader_plugin.execute import RunSubmission
from grader.nbgrader_plugin.exporter import Harmless
from grader.nbgrader_plugin.outputs import CountErrorsOnly
from grader.nbgrader_plugin.steps import (
    ISOLATED_VARIABLE,
    GradeIsolated,
    Rebuild,
    SaveRecord,
    copy_plain_files_only,
    show_receipts,
)
from grader.report.grades import GradesCsv
from grader.written.rubrics import ShowRubrics
from labkit.build import release
from labkit.build.shown import ShortenChecks

SECONDS_PER_CELL = 60


def configure(c: Config) -> None:
    """Write the course's settings into `c`; lines after the call may change them."""
    # nbgrader starts `alembic` by its name, and the environment need not be activated.
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = programs + os.pathsep + os.environ.get("PATH", os.defpath)
    copy_plain_files_only()
    show_receipts()
    formgrader_pages.harden()
    watch()
    if os.environ.get(ISOLATED_VARIABLE):
        c.Autograde.sanitize_preprocessors = [GradeIsolated]
        c.Autograde.autograde_preprocessors = []
    else:
        c.Autograde.sanitize_preprocessors = [
            Rebuild, stock.ClearOutput, stock.DeduplicateIds, stock.OverwriteKernelspec,
            stock.OverwriteCells, stock.CheckCellMetadata]
        c.Autograde.autograde_preprocessors = [
            RunSubmission, CountErrorsOnly, stock.LimitOutput, stock.SaveAutoGrades,
            AssignPenalties, stock.CheckCellMetadata, SaveRecord]
    c.merge(release.CONFIG)  # as `lab build` makes the notebooks that students get
    c.OverwriteCells.add_missing_cells = True
    c.Execute.timeout = SECONDS_PER_CELL
    c.Execute.skip_cells_with_tag = "explore"
    c.GenerateFeedback.exporter_class = FeedbackPage
    c.GenerateFeedback.preprocessors = [
        HideTests, ShortenChecks, MarkUnscored, LimitOutputSize, stock.GetGrades, Notices,
        MarkPending, CSSHTMLHeaderPreprocessor]
    # Also what formgrader shows to the instructor.
    c.HTMLExporter.preprocessors = [ShowRubrics, Harmless, EmbedImages]
    c.HTMLExporter.sanitize_html = True
    c.ExportApp.plugin_class = GradesCsv
    c.AssignLatePenalties.plugin_class = LatePenalty

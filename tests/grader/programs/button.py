"""The call of formgrader's button: nbgrader's API for one submission."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Print the API's answer. The arguments are the course folder, a lab, and a student."""
    from nbgrader.apps.api import NbGraderAPI

    from grader.course import Course

    root, lab, student = sys.argv[1:]
    print(json.dumps(NbGraderAPI(config=Course(Path(root)).settings()).autograde(lab, student)))

"""Every question under "Discuss" has a note in the instructor guide."""

import re

from labcore import workspace
from tests.labs.test_labs import each_lab, lab_of

GUIDE = workspace.CHECKOUT / "docs" / "teaching.md"


@each_lab
def test_every_question_has_its_note(path):
    text = "\n".join(cell.source for cell in lab_of(path).cells if cell.kind == "markdown")
    discuss = re.search(r"^## Discuss\n(.*?)(?=^## |\Z)", text, re.M | re.S).group(1)
    questions = re.findall(r"^\d+\. \*\*(.+?)\*\*", discuss, re.M)
    number, _, name = path.stem.partition("_")
    heading = f"### {number} {name.replace('_', '-')}"
    notes = GUIDE.read_text().partition("## Discussion notes")[2].partition(heading)[2]
    notes = notes.partition("\n### ")[0]
    assert questions and re.findall(r"^\d+\. \*\*(.+?)\*\*", notes, re.M) == questions

"""Every lab's checks say the same of a student in another process, seen through stand-ins only."""

from lab import workspace
from lab.build import read
from tests.labs import elsewhere, graded
from tests.labs.test_labs import each_lab


@each_lab
def test_checks_work_across_processes(path, tmp_path):
    home = tmp_path / "workspace"
    workspace.make(home)
    lab = read(path)
    assert elsewhere.run(lab, home, {}).failed() == set()
    for name, mutants in lab.mutants.items():
        checks = {cell.grade_id for cell in lab.tested_by[name]}
        for mutant in mutants[:2]:
            found = elsewhere.run(lab, home, {name: mutant.source}, checks)
            texts = [graded.text(error) for error in found.checks.values() if error]
            assert any(mutant.hint in text for text in texts), f"{mutant.title}: {texts}"

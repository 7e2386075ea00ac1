"""Write labs and check answers: build/, check/, guest/, and contest/.

build/   turns an author's source file into the student notebook, the worked one, and the grader's
contest/ the student's side of a contest
guest/   runs a student's cells in a sandbox and answers requests over a pipe
check/   `from labkit import check`: the checks a notebook calls, and what they may touch
provenance.py finds the cells that a name comes from, cells.py and names.py describe cells and their
names, lab_checks.py reads the checks that lie beside a notebook, and masks.py finds the modules and
names that a lab's masks make unavailable to answers

Imports point down this list. A check is written once and runs in two places: in the student's
kernel, and in a trusted process that reaches the student's code through a side (check/sides.py).
The package may import labcore, pipeline_schedules, virtualgpu, and the trainer's table of flags,
but nothing that trains or grades.
Begin with check/sides.py and build/reading.py; docs/writing-labs.md is the author's guide.
"""

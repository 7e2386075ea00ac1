"""The gradebook file and a record of every submission: never lost silently, restored when they are.

records.py     whether each submission is graded, and why not; byhand.py what a person entered
ungraded.py    withdraws the scores of a submission that cannot be graded
entered.py     which version of each submission the gradebook's scores belong to
late.py        late penalties; notices.py what pages and grades.csv say about them
pending.py     written answers that nobody has graded yet: never a 0
extensions.py  a later due date for one student; decisions.py a score for a whole lab, and why

faults.py      what SQLite and the disk say, as sentences for the instructor
mark.py        which gradebook the course has, and how many changes it has seen, noted outside of it
guard.py       refuses a gradebook that is missing, damaged, or older than it was
watch.py       puts the guard and the mark around every opening, nbgrader's own commands included
backups.py     copies of the gradebook, before and after every change of ours
restore.py     brings one of them back; cli.py `lab gradebook`

May import grader.course and grader.commands. Begin with records.py.
"""

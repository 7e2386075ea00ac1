"""The gradebook file and a record of every submission, with protection against data loss.

records.py     whether each submission is graded, and why not; byhand.py: scores entered by a person
ungraded.py    withdraws the scores of a submission that cannot be graded
entered.py     which version of each submission the gradebook's scores belong to
late.py        late penalties; notices.py: the notices about them on pages and in grades.csv
pending.py     written answers without a score; they never count as 0
extensions.py  a later due date for one student; decisions.py: a score for a whole lab, and why

faults.py      explains errors of SQLite and the disk to the instructor
mark.py        identifies the course's gradebook and its number of changes, outside the file
guard.py       refuses a gradebook that is missing, damaged, or out of date
watch.py       applies the guard and the mark to every opening, even by nbgrader's own commands
backups.py     copies the gradebook before and after every change that we make
restore.py     restores one of the copies; cli.py: `lab gradebook`

May import grader.course and grader.commands. Begin with records.py.
"""

"""The gradebook file: never lost without a word, and restored when it is.

faults.py    what SQLite and the disk say, as sentences for the instructor
mark.py      which gradebook the course has, and how many changes it has seen, noted outside of it
entered.py   which version of each submission the gradebook's scores belong to
guard.py     refuses a gradebook that is missing, damaged, or older than it was
watch.py     puts the guard and the mark around every opening, nbgrader's own commands included
backups.py   copies of the gradebook, before and after every change of ours
restore.py   brings one of them back
cli.py       `lab gradebook`

extensions.py   a later due date for one student; decisions.py a score for a whole lab, and why
decide_cli.py   `lab extend` and `lab score`; words.py reads their arguments
notices.py      what pages and grades.csv say about lateness and decisions
"""

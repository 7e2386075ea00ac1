"""Grading: nbgrader's course folder and commands, with what nbgrader leaves open closed around it.

Student code is untrusted, and a grade is never wrong, lost, or forged. Each folder is a room with a
purpose of its own; a room imports only rooms that are listed below it.

cli.py       `lab grade`, `lab release`, `lab feedback`, and the other rooms' commands
config.py    the settings that a course's nbgrader_config.py loads

contest/     contests: submissions, secret cases, ranks
decide/      `lab extend`, `lab score`, `lab aside`, `lab attempt`, `lab review`: decisions
export/      scores and pages in the formats of Canvas and Moodle
similarity/  which submissions look alike
stats/       how hard the exercises of a lab were, and which hints fired
validate/    `lab validate`: a student's own run of what grading will run
written/     written answers: rubrics in formgrader, and a second grader

batch/       many submissions: worker processes grade them, one process enters the results
collect/     submissions from archives, course sites, and a hub's homes
feedback/    the page that a student gets back
nbgrader_plugin/  nbgrader's own commands and formgrader, made safe
report/      grades.csv, which attempt counts, and the table on the terminal
gradebook/   the gradebook file, and a record of every submission
run/         one submission: rebuild the notebook, run it in the sandbox, check it from outside
sandbox/     isolation for student code
course/      the course folder, and what lies in it

commands.py  what the commands share
cleaning.py  text and outputs from a sandbox, bounded and harmless

Begin with run/attempt.py, which grades one submission, then batch/batch.py.
"""

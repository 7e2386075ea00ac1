"""Grading: nbgrader's course folder and commands, with what nbgrader leaves open closed around it.

course.py    the folder: sources, submissions, secret, configuration
config.py    which steps nbgrader takes with a submission
rebuild.py   step 1: the release, with the student's answers and nothing else of the student's
copies.py    one answer out of several cells with its name
execute.py   step 2: run it (today in a plain kernel, without isolation)
outputs.py   step 3: what of a check's output counts
records.py   step 4: graded, or ungraded and why
batch.py     all of it for many submissions; one that breaks stops no other
feedback.py  the page that a student gets back
report.py    grades.csv and the table
"""

"""What an instructor reads: every student, every lab, and no score that is not one.

grades.py   the rows of grades.csv, and nbgrader's export of them
policy.py   which of several attempts counts
show.py     the progress bar and the table of `lab grade`

May import grader.gradebook and grader.course. Begin with grades.py.
"""

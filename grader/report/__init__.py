"""Reports for the instructor: every student, every lab, and no score where there is none.

grades.py   grades.csv; policy.py: which attempt counts
show.py     the terminal: a progress bar and a table

May import grader.gradebook and grader.course. Begin with grades.py.
"""

"""Written answers, which a person grades.

rubrics.py    the model answer and the rubric, shown to graders beside a student's answer
second.py     a sample of hand-graded answers for a second grader
agreement.py  measures the agreement of two graders
cli.py        `lab second`

May import grader.feedback and everything below it. Begin with second.py.
"""

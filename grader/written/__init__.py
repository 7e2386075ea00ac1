"""Written answers, which a person grades.

rubrics.py    the model answer and the rubric, shown to graders beside a student's answer
second.py     a sample of hand-graded answers for a second grader
agreement.py  how far two graders agree
cli.py        `lab second`

May import grader.feedback and everything below it. Begin with second.py.
"""

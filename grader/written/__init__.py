"""Written answers, which a person grades.

rubrics.py    the model answer and the rubric, shown to graders beside a student's answer
pending.py    answers that nobody has graded yet: never a 0, in the table and on the page
second.py     a sample of hand-graded answers for a second grader
agreement.py  how far two graders agree
cli.py        `lab second`
"""

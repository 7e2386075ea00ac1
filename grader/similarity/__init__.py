"""Find similar submissions. A report for an instructor to review; it changes no grade.

answers.py   one student's own code, cut into tokens
scores.py    pairwise similarity
clusters.py  groups in which everybody is alike, and pairs across groups
reading.py   the class, the worked solution, and earlier years, each submission within limits
report.py    the findings, ready to be shown
page.py      the page; cli.py `lab similar`

May import grader.collect, grader.run, and everything below them. Begin with report.py.
"""

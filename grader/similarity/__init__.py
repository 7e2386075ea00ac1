"""Similarity: whose answers look alike. It gives a person something to look at, and changes no
grade.

answers.py   one student's own code, cut into tokens
scores.py    how alike every two students are
clusters.py  groups in which everybody is alike, and pairs across groups
reading.py   the class, the worked solution, and earlier years, each submission within limits
report.py    what was found, ready to be shown
page.py      the page; cli.py `lab similar`
"""

"""Statistics of one lab: how hard each exercise was, how well it told students apart, and which
hints were needed. They are computed from what grading stored, and no student's name is in them.

hints.py    the hints that a lab's author wrote, recognized in the messages of checks
reading.py  what grading stored about a lab
figures.py  the numbers; page.py shows them, as a page and as CSV
cli.py      `lab stats`
"""

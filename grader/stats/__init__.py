"""Statistics of one lab: how hard each exercise was, how well it discriminated, and which
hints were needed. They are computed from stored results and contain no student's name.

hints.py    the hints that a lab's author wrote, recognized in the messages of checks
reading.py  what grading stored about a lab
figures.py  the numbers; page.py shows them, as a page and as CSV
cli.py      `lab stats`

May import grader.gradebook and grader.course. Begin with figures.py.
"""

"""The feedback page for a student: harmless, in one file, without the hidden tests.

page.py    nbgrader's page and the steps before it: what is shortened, hidden, and explained
unreadable.py  the page of a student whose file cannot be read
pages.py   makes pages in a worker, from scores that the parent process read

May import grader.nbgrader_plugin (which sanitizes HTML), grader.gradebook, grader.run, and
grader.course. Begin with page.py.
"""

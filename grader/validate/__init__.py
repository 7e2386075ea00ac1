"""`lab validate`: what grading will run, before a student submits.

validating.py  rebuilds a notebook from the release and its answers, runs it, and gives verdicts
cli.py         the command, which students have, too

Students' images have this package, and run, sandbox, course, and cleaning.py, which it needs, but
neither nbgrader nor the hidden tests; so none of these modules imports nbgrader at its top.
"""

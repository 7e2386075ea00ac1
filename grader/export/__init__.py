"""Export: scores and feedback pages in the formats that Canvas and Moodle import.

The instructor downloads the LMS's own file; we fill in grade cells and change no other byte.

sheet.py     a CSV file whose cells can be replaced in place
layout.py    what a file from an LMS holds: students, grade columns, maximum points
canvas.py    Canvas's gradebook; moodle.py Moodle's grading worksheet and gradebook
matching.py  which student of ours a row of theirs is, or why that is not certain
columns.py   which column a lab's scores go into
filling.py   the cells to write, and what an instructor should know about the rest
archive.py   feedback pages as one zip, named the way each LMS reads them back
cli.py       `lab export`

May import grader.batch and everything below it. Begin with filling.py.
"""

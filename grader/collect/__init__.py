"""Collect submissions from a folder, an LMS's archive, or nbgrader's exchange into submitted/.

sources.py   the files of a folder, a zip, or a tar; nothing is unpacked, no link is followed
layouts.py   who submitted a file, by the naming of Canvas, Moodle, folders, or a pattern
exchange.py  the same for nbgrader's exchange, with the evidence of its file system
homes.py     the same for a hub's volumes, of which only one folder counts
which.py     which lab a notebook belongs to
given.py     what the instructor knows: a worksheet's participants, each student's time
store.py     received/ with all versions, submitted/ with the one that counts
collecting.py  all of it, for one source
cli.py       `lab collect` and `lab roster`; groups.py: `lab groups`

May import grader.report, grader.gradebook, and grader.course. Begin with collecting.py.
"""

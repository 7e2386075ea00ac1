"""nbgrader's own pages and commands, with the grader's steps, made safe for students' content.

assign.py          nbgrader's assignment for a lab: release/ and its entry in the gradebook
steps.py, execute.py, outputs.py   our steps in `nbgrader autograde` and formgrader's button
formgrader.py      `lab formgrader`: JupyterLab with formgrader
formgrader_pages.py  formgrader's pages, with a Content-Security-Policy that runs its scripts only
exporter.py        nbconvert's exporter, which sanitizes HTML after rendering it
clean.py, bounds.py  the parts of a student's HTML that may reach a browser
mathjax.py         math in pages: MathJax without links, and without inline scripts of students

May import grader.gradebook, grader.run, and grader.course. Begin with steps.py.
"""

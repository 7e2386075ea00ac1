"""nbgrader's own pages and commands, driven by us or made safe to use on what students wrote.

assign.py          nbgrader's assignment of a lab: release/, and the gradebook's side of it
steps.py, execute.py, outputs.py   our steps in `nbgrader autograde` and formgrader's button
formgrader.py      `lab formgrader`: JupyterLab with formgrader
formgrader_pages.py  formgrader's pages, with a Content-Security-Policy that runs its scripts only
exporter.py        nbconvert's exporter, which sanitizes HTML after rendering it
clean.py, bounds.py  a student's HTML: what of it may reach a browser
mathjax.py         math in pages: MathJax without links, and without inline scripts of students

May import grader.gradebook, grader.run, and grader.course. Begin with steps.py.
"""

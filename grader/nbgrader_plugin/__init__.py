"""nbgrader's own pages and commands, made safe to use on what students wrote.

clean.py           a student's HTML: what of it may reach a browser
exporter.py        nbconvert's exporter, which sanitizes HTML after rendering it
mathjax.py         math in pages: MathJax without links, and without inline scripts of students
formgrader_pages.py  formgrader's pages, with a Content-Security-Policy that runs its scripts only
"""

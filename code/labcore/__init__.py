"""Helpers that every other package uses, and that know nothing about them.

The checkout and the workspace (workspace.py, own_labs.py, shipping.py), the one exception whose
text is meant for users (errors.py), files that are replaced in one step (atomic.py), text that is
safe on a terminal or in a page (terminal.py, html.py), and what is shown (colors.py, pictures.py,
progress.py). rankfiles.py reads the files that a job's ranks leave behind.

It may import the standard library, and where a function needs them Jinja2, matplotlib, and rich; it
imports none of our packages. Begin with workspace.py and errors.py. Importing it costs nothing, so
every `lab` command may.
"""

from labcore.errors import LabError

__all__ = ["LabError"]

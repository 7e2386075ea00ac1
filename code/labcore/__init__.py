"""Provide helpers that every other package uses and that know nothing about them.

workspace.py, own_labs.py, and shipping.py find and fill the checkout and the workspace. errors.py
has the one exception whose text is meant for users. atomic.py replaces files in one step,
terminal.py and html.py make text safe for a terminal or a page, and colors.py, progress.py, and
listing.py format what cells and commands print. rankfiles.py reads the files that a job's ranks
leave behind.

The package may import the standard library, and inside functions Jinja2 and rich, but none of our
packages. Begin with workspace.py and errors.py. Importing it costs nothing, so every `lab` command
may.
"""

from labcore.errors import LabError

__all__ = ["LabError"]

"""What runs inside a sandbox: one student's cells and functions, asked for through bounded frames.

protocol.py  the frames, used by both sides
serving.py   requests and what answers them
shell.py     an IPython shell that behaves as the notebook's kernel does
capture.py   everything a cell prints, shows or raises, with a limit
__main__.py  the program

Nothing in here is trusted: the student's code shares its process. What must hold, whatever this
program sends, is the trusted side's business (grader/run/channel.py and what builds on it).
"""

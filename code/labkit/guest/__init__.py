"""The program inside a sandbox: it runs one student's cells and functions on request.

protocol.py  the frames, used by both sides
router.py    the first process, without any code of the student's: it starts ranks
serving.py   its child, the shell: requests and their responses
shell.py     an IPython shell that behaves as the notebook's kernel does
capture.py   everything a cell prints, shows or raises, with a limit
__main__.py  the program

Nothing in here is trusted: the student's code shares the shell's process. The trusted side
(grader/run/channel.py and its users) must be correct no matter what this program sends.
"""

"""Contests: students' functions compete with published algorithms and with each other.

contests/       one file per contest
declaration.py  the classes that such a file uses
catalog.py      finds them
play.py         scores an answer from you, a ghost, or a submission in the sandbox
player.py       loads a file and calls its function in a separate process
local.py        runs that process on your machine
table.py        shows scores
cli.py          `lab contest`

docs/contests.md is the guide. The grader's part (secret cases, submissions, rankings) is in
grader/contest/, which students' images do not contain.
"""

"""Contests: a function of yours against published algorithms and the rest of the class.

contests/       one file per contest
declaration.py  what such a file declares
catalog.py      finds them
play.py         scores an answer, whoever gave it: you, a ghost, or a submission in the sandbox
player.py       loads a file and calls its function, in a process of its own
local.py        runs that process on your machine
table.py        shows scores
cli.py          `lab contest`

docs/contests.md is the guide. The grader's part (secret cases, submissions, ranks) is in
grader/contest/, which students' images do not have.
"""

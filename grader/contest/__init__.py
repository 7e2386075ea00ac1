"""The instructor's side of a contest; labkit.contest has the students' side.

secret.py       the secret cases, and students' pseudonyms: both follow from the course's secret
collecting.py   files from an LMS's archive or a folder
submissions.py  what students submitted, every version of it, and when
sandboxed.py    plays one file on the secret cases, in the sandbox
worker.py       a process that does that
attempts.py     every attempt of every student, as files
grading.py      plays whatever has not been played yet
standings.py    ranks
page.py         the table as HTML and CSV
cli.py          `lab contest collect`, `grade` and `table`

May import grader.collect, grader.batch, and everything below them. Begin with grading.py.
"""

"""An instructor's decisions: more time, a score for a whole lab, a submission set aside, the
attempt that counts, and what was scored by hand. They are stored by grader.gradebook; the commands
here also make the pages and grades.csv again.

cli.py       `lab extend`, `lab score`, and `lab aside`; words.py parses their arguments
attempts.py  `lab attempt`
review.py    `lab review`

May import grader.batch and everything below it. Begin with cli.py.
"""

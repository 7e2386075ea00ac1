"""An instructor's decisions about one student: more time, a score for a whole lab, a submission set
aside. They are stored by grader.gradebook; the commands here also make the pages and grades.csv
again.

cli.py     `lab extend`, `lab score`, and `lab aside`
words.py   parses their arguments

May import grader.batch and everything below it. Begin with cli.py.
"""

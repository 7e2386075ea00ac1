"""One submission, from the submitted file to scores: the only room that runs student code.

lab_plan.py, forgeable.py   the lab: what each cell is for, and tests that students could forge
rebuild.py, copies.py       step 1: the release, with the student's answers in it
session.py, channel.py      step 2: the student's code, in a sandbox
notebook_run.py, trusted.py, proxies.py, remote.py, measure.py
                            step 3: the checks, here, asking the sandbox
attempt.py                  one submission through these three; results.py attempts as files
settings.py, timing.py      limits, and the alarm that enforces them

It neither reads nor writes the gradebook. May import grader.sandbox, grader.course, and
grader.cleaning. Begin with attempt.py.
"""

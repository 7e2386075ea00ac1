"""Grading: nbgrader's course folder and commands, with what nbgrader leaves open closed around it.

course.py    the folder: sources, submissions, secret, configuration
config.py    which steps nbgrader takes with a submission
settings.py  what an instructor may set: budgets, limits, workers
lab_plan.py  the lab as it is graded, with its hidden tests; what each cell is for
attempt.py   one submission, from its bytes to an Attempt, by these steps:

  submitted.py  the bytes, read once
  rebuild.py    step 1: the release, with the student's answers and nothing else of the student's
  copies.py     one answer out of several cells with its name
  walk.py       all cells in their order
  session.py    step 2: run the student's cells in a sandbox, which comes back when one ends it
  sandbox/      back-ends, limits, self-test
  channel.py    frames to and from lab.guest, which runs inside; bounded, with deadlines
  probe.py      step 3: run the checks here
  remote.py     what they ask of the student, over the channel
  proxies.py    a student's name on this side
  cleaning.py   what came out of a sandbox, made fit to be shown
  timing.py     time limits for this process

execute.py   nbgrader's own execution in a plain kernel, without isolation: `nbgrader autograde`
outputs.py   what of a check's output counts there
records.py   step 4: graded, or ungraded and why
batch.py     all of it for many submissions; one that breaks stops no other
feedback.py  the page that a student gets back
report.py    grades.csv and the table
collect/     what students handed in, from wherever, into submitted/; when it came in
roster.py    the class, and who is meant by a name
late.py      late penalties: a plugin of nbgrader
policy.py    which of several attempts counts
times.py     times that people write
similar.py   whose answers look alike; similar_page.py shows it, similar_cli.py is `lab similar`
"""

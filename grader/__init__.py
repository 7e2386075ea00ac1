"""Grading: nbgrader's course folder and commands, with what nbgrader leaves open closed around it.

course.py    the folder: sources, submissions, secret, configuration
assign.py    nbgrader's assignment of a lab: release/, and the gradebook's side of it
collect/     submissions from archives and course sites, with the time at which they came in

submitted.py, rebuild.py, copies.py   step 1: the release, with the student's answers in it
sandbox/, session.py, channel.py      step 2: the student's code, apart from everything else
walk.py, probe.py, proxies.py         step 3: the checks, here, asking it over a channel
attempt.py   one submission through these three, lab_plan.py the lab they need
worker.py    a process that does attempts; pool.py several of them, watched
results.py   attempts as files
merge.py     step 4: from there into the gradebook; records.py, ungraded.py, byhand.py the rest
batch.py     all of it for many submissions; one that breaks stops no other; slurm.py on a cluster
pages.py, feedback.py   the page that a student gets back
nbgrader_plugin/        students' HTML made harmless, in formgrader and in the feedback
written/     written answers: rubrics in formgrader, pending scores, a second grader
report.py    grades.csv; show.py the table
export/      scores and pages in the formats of Canvas and Moodle

gradebook/   the gradebook's backups, its guard against loss, extensions and scores by decision

roster.py    the class, and who is meant by a name
late.py      late penalties: a plugin of nbgrader
policy.py    which of several attempts counts
times.py     times that people write
contest/     contests: submissions, secret cases, ranks
stats/       how hard the exercises of a lab were, and which hints fired
similarity/  whose answers look alike: each other's, the worked solution's, or last year's

config.py    which steps nbgrader's own commands take; steps.py, execute.py, outputs.py those steps
"""

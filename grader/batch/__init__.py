"""Many submissions: worker processes grade them, and this process alone enters the results.

batch.py    one run over many submissions; one that breaks stops no other
worker.py   a trusted process that grades and makes pages
pool.py     several of them, watched; forks.py starts them warm
merge.py    one result into the gradebook, and its record
slurm.py    the same on a cluster, as an array job

interrupts.py lets Ctrl-C wait until what is being entered is complete.

Killed at any moment, the next batch continues where this one stopped. May import every room that
works on one submission: run, gradebook, report, nbgrader_plugin, and feedback. Begin with batch.py.
"""

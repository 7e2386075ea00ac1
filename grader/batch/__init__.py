"""Grade many submissions: worker processes grade them, and this process alone enters the results.

batch.py    one run over many submissions; a failure in one does not stop the others
worker.py   a trusted process that grades submissions and makes feedback pages
pool.py     a monitored pool of them; forks.py starts them without repeating imports
merge.py    one result into the gradebook, and its record
slurm.py    the same on a cluster, as an array job
regrades.py which submissions a regrade has graded, in case it is killed

interrupts.py delays Ctrl-C until the current entry is complete.

If a batch is killed, the next one continues where it stopped. May import every package that works
on one submission: run, gradebook, report, nbgrader_plugin, and feedback. Begin with batch.py.
"""

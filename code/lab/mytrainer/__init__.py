"""What the course provides around `mytrainer/`, the trainer that students write in their workspace.

code/jobs/my_trainer.py is the training loop. It finds the student's files with pieces.py and reads
the command line with flags.py. `lab mytrainer` (cli.py) lists the pieces (status.py), tests them on
two ranks (selfcheck.py), and measures on virtual GPUs what they buy (gain.py); worked.py puts the
course's own version of a piece in place. Begin with pieces.py.
"""

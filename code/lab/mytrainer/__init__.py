"""Support for `mytrainer/`, the trainer that students write in their workspace.

code/jobs/my_trainer.py is the training loop. It imports the student's files through pieces.py and
parses its command line with flags.py. The command `lab mytrainer` (cli.py) tests each piece on two
ranks (selfcheck.py) and measures on virtual GPUs what the pieces gain (gain.py, journey.py); with
`--worked`, it installs the course's own version of a piece (worked.py). small_model.py builds the
small GPT of lab 05. Start reading at pieces.py.
"""

"""Support for `mytrainer/`, the trainer that students write in their workspace.

code/jobs/my_trainer.py is the program. It imports the student's files through pieces.py, parses its
command line with flags.py, and trains the GPT of model.py. defaults.py has the course's versions of
the files that a student has not written yet. The command `lab mytrainer` (cli.py) tests each piece
on two ranks (selfcheck.py, single_process.py) and measures on virtual GPUs what the pieces gain
(gain.py, journey.py); with `--worked`, it installs the worked solution of a piece (worked.py).
small_model.py builds the small GPT of lab 05. Start reading at pieces.py.
"""

"""Warm starts for a lab's jobs: `torchrun` and `python FILE` fork from a server with torch loaded.

A lab in its short setting starts some thirty processes that import torch, for two seconds of CPU
time each, and compute for half a second. Here every node of the test cluster, and the machine of
the notebook's kernel, has one server that has imported torch and the trainer. Commands named
`torchrun` and `python` come first on the PATH, next to the cluster's sbatch. Each asks its node's
server for a fork, passes on its signals, and ends with the fork's exit code; when it is killed, so
is everything that the fork started. Slurm, the job scripts, torchrun's own code with its
rendezvous, and the trainer's main program all run as for a student. Only the start of the
interpreter and the imports are shared.

tests/jobs/test_failing_jobs.py has jobs that start cold, and `make stress` runs whole labs without
any of this.
"""

"""Submit a training run from one configuration file: `lab submit conf.toml`.

conf.py reads the file and rejects unknown keys, layout.py checks that the numbers agree and places
the stages on nodes, memory.py asks the estimator whether every stage fits its GPU, and nodes.py
asks Slurm whether the cluster has the nodes. Only then does scripts.py write the batch scripts that
cli.py submits: a job, Slurm's heterogeneous job, or a job per GPU kind that join each other.

It imports the estimator, the trainer's flags, slurmbox, virtualgpu, and labcore. Begin with
conf.py, then script.sh.j2; docs/heterogeneous.md is the user's guide.
"""
